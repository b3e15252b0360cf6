#include "actor/step_buffers.h"

#include <algorithm>
#include <ranges>

#include "model/rope.h"

namespace miles {
namespace {

constexpr int kResidualWindow =
    4;  // input and output in use, one on its way in, one on its way out

HeadBuffers make_head_buffers(const ModelConfig& config, const HeadExtent& extent, int64_t tokens,
                              Arena& arena) {
  const DType dtype = config.dtype;
  const int64_t rows = extent.run;
  HeadBuffers head;
  if (dtype != DType::f32)
    head.logits = arena.allocate(DType::f32, {extent.chunk, config.vocab_size});
  head.dlogits = arena.allocate(dtype, {rows, config.vocab_size});
  for (Tensor* row : {&head.x, &head.normed, &head.d_normed, &head.d_x})
    *row = arena.allocate(dtype, {rows, config.hidden_size});
  head.d_residual = arena.allocate(dtype, {tokens, config.hidden_size});
  head.rows = arena.allocate(DType::i32, {rows});
  head.targets = arena.allocate(DType::i32, {rows});
  for (Tensor* column : {&head.rstd, &head.inverse_temperature, &head.log_prob, &head.lse,
                         &head.entropy, &head.d_log_prob, &head.d_entropy})
    *column = arena.allocate(DType::f32, {rows});
  return head;
}

/// Four chunks are a run: their gradients take about twice the memory of one chunk of f32 logits.
/// In f32 logits and gradients are one, and so are chunk and run.
HeadExtent extent_of(const ModelConfig& config, int64_t chunk) {
  return {.chunk = chunk, .run = config.dtype == DType::f32 ? chunk : 4 * chunk};
}

/// What runs the head is cut into decides how its gradient is rounded, so it follows from what a
/// checkpoint's fingerprint knows: model, device and flag. Unless given, as many rows as fit into
/// 256 MiB on the CPU and 2 GiB on a GPU, which needs more to be busy.
HeadExtent choose_head_extent(const ActorOptions& options, const ModelConfig& config,
                              DeviceKind kind) {
  constexpr int64_t kFewest = 16;
  constexpr int64_t kTile = 256;  // rows that a product computes side by side
  const int64_t room = int64_t{kind == DeviceKind::cuda ? 2048 : 256} << 20;
  int64_t chunk = options.log_probs_chunk_size;
  if (chunk <= 0) {
    const auto fits = [&](int64_t rows) {
      Arena size;
      make_head_buffers(config, extent_of(config, rows), 0, size);
      return size.used() <= room;
    };
    const auto more = std::views::iota(kFewest + 1, int64_t{1} << 16);
    chunk = kFewest + (std::ranges::partition_point(more, fits) - more.begin());
    if (chunk > kTile) chunk -= chunk % kTile;
  }
  // More rows than a micro-batch has never come, and libraries want to count elements in an int.
  const int64_t most =
      std::min(options.max_tokens_per_gpu, std::max<int64_t>(1, INT32_MAX / config.vocab_size));
  const HeadExtent extent = extent_of(config, std::min(chunk, most));
  return {.chunk = extent.chunk, .run = std::min(extent.run, most)};
}

}  // namespace

StepBuffers::StepBuffers(const ActorOptions& options, const ModelConfig& config,
                         const ParamLayout& layout, Memory memory, CopyStreams& copies)
    : options_(options),
      config_(config),
      layout_(layout),
      device_(memory.device.kind()),
      head_extent_(choose_head_extent(options, config, device_)),
      rope_table_(memory.device.runs() ? make_rope_table(config, options.max_sequence_length)
                                       : std::vector<float>()) {
  Arena activations, accumulators, working;
  place(activations, accumulators, working);
  activations_ = Region(memory, Place::device, "actor.activations", activations.used());
  accumulators_ = Region(memory, Place::device, "actor.grads", accumulators.used());
  working_ = Region(memory, Place::device, "actor.workspace", working.used());

  const bool streamed = options.placement == ActorPlacement::streamed;
  const int64_t row = config.hidden_size * size_of(config.dtype);
  const Place home = streamed ? Place::host : Place::device;
  residual_home_ = Region(memory, home, streamed ? "store.activations" : "actor.activations",
                          (layout.layers() + 1) * options.max_tokens_per_step * row);
  if (streamed) residual_home_.commit();
  residuals_ = std::make_unique<BlockStore>(
      memory, copies,
      BlockStoreOptions{.home_place = home,
                        .home = residual_home_.data(),
                        .blocks = {},
                        .tag = "actor.activations",
                        .slots = streamed ? kResidualWindow : 0,
                        .slot_bytes = options.max_tokens_per_gpu * row});
}

void StepBuffers::place(Arena& activations, Arena& accumulators, Arena& working) {
  const int64_t tokens = options_.max_tokens_per_gpu;
  Arena block_size, head_size;
  make_training_buffers(config_, tokens, block_size);
  make_head_buffers(config_, head_extent_, tokens, head_size);
  const Tensor shared =
      activations.allocate(DType::u8, {std::max(block_size.used(), head_size.used())});
  Arena block(static_cast<std::byte*>(shared.data()), shared.bytes()), head = block;
  block_ = make_training_buffers(config_, tokens, block);
  head_ = make_head_buffers(config_, head_extent_, tokens, head);
  attention_scratch_ = activations.since(block_.idle);
  // All micro-batches of a step are uploaded at its start; each one's arrays are padded by
  // themselves.
  const int64_t batches = most_batches();
  const int64_t upload_bytes =
      batch_bytes(options_.max_tokens_per_step, options_.max_sequences_per_step + batches, 0) +
      batches * 7 * Arena::kAlignment;
  uploads_ = activations.allocate(DType::u8, {upload_bytes});
  kept_room_ = activations.allocate(DType::u8, {kept_bytes()});

  const auto sums = [&](const Group& group) {
    return static_cast<std::byte*>(accumulators.allocate(DType::f32, {group.elements}).data());
  };
  layer_sum_ = sums(layout_.layer(0));
  embed_sum_ = sums(layout_.embed());
  head_sum_ = sums(layout_.head());

  rope_ = working.allocate(DType::f32, {options_.max_sequence_length, config_.head_dim});
  // A group has at most its size over a layer's, rounded up, chunks.
  const int64_t chunks = layout_.layers() + 2 + layout_.elements() / layout_.layer(0).elements;
  norms_ = working.allocate(DType::f32, {chunks});
  workspace_ = working.allocate(DType::u8, {workspace_bytes(device_)});
}

int64_t StepBuffers::most_batches() const {
  return most_micro_batches(options_.max_tokens_per_step, options_.max_sequences_per_step,
                            options_.max_tokens_per_gpu);
}

int64_t StepBuffers::kept_bytes() const {
  Arena block;  // all micro-batches of the largest step, however it is packed
  make_layer_activations(config_, options_.max_tokens_per_step, block);
  const int64_t padding = most_batches() * LayerActivations::kTensors * Arena::kAlignment;
  const int64_t layers = layout_.layers();
  return (layers - std::min(options_.recompute_num_layers, layers)) * (block.used() + padding);
}

void StepBuffers::keep_activations(const std::vector<MicroBatch>& micro_batches) {
  kept_.clear();
  Arena room(static_cast<std::byte*>(kept_room_.data()), kept_room_.bytes());
  for (int64_t l = layout_.layers() - 1; l >= 0; --l)
    for (size_t m = micro_batches.size(); m-- > 0;) {
      const int64_t tokens = micro_batches[m].batch.tokens();
      Arena size;
      make_layer_activations(config_, tokens, size);
      if (size.used() > kept_room_.bytes() - room.used()) return;
      kept_.push_back(make_layer_activations(config_, tokens, room));
    }
}

LayerBuffers StepBuffers::layer(int64_t l, int m) const {
  const int64_t back = (layout_.layers() - 1 - l) * micro_batches() + micro_batches() - 1 - m;
  return back < kept_blocks() ? keeping(block_.forward, kept_[static_cast<size_t>(back)])
                              : block_.forward;
}

const std::vector<float>& StepBuffers::host_inverses(float inverse) {
  if (inverses_.empty() || inverses_.front() != inverse)  // or else copies may still read them
    inverses_.assign(static_cast<size_t>(head_extent_.chunk), inverse);
  return inverses_;
}

std::span<std::byte> StepBuffers::workspace() const {
  return {static_cast<std::byte*>(workspace_.data()), static_cast<size_t>(workspace_.bytes())};
}

void StepBuffers::commit(Stream& stream) {
  if (activations_.committed()) return;
  try {
    activations_.commit();
    accumulators_.commit();
    working_.commit();
    residual_home_.commit();
    residuals_->onload();
    Arena activations(activations_.data(), activations_.bytes());
    Arena accumulators(accumulators_.data(), accumulators_.bytes());
    Arena working(working_.data(), working_.bytes());
    place(activations, accumulators, working);
    if (!rope_table_.empty()) stream.copy(rope_.data(), rope_table_.data(), rope_.bytes());
  } catch (...) {  // all of it or nothing
    release();
    throw;
  }
}

void StepBuffers::release() {
  if (!activations_.committed()) return;
  residuals_->offload();
  if (options_.placement != ActorPlacement::streamed) residual_home_.release();
  working_.release();
  accumulators_.release();
  activations_.release();
}

void StepBuffers::begin_step(Exec& exec, const std::vector<MicroBatch>& micro_batches) {
  Arena arena(static_cast<std::byte*>(uploads_.data()), uploads_.bytes());
  batches_.clear();
  std::vector<BlockSpan> blocks;
  const int64_t row = config_.hidden_size * size_of(config_.dtype);
  for (const MicroBatch& micro_batch : micro_batches)
    batches_.push_back(upload(exec, arena, micro_batch.batch));
  for (int64_t l = 0; l <= layout_.layers(); ++l)
    for (const MicroBatch& micro_batch : micro_batches)
      blocks.push_back({(l * options_.max_tokens_per_step + micro_batch.token_begin) * row,
                        micro_batch.batch.tokens() * row});
  residuals_->set_blocks(std::move(blocks));
  keep_activations(micro_batches);
}

BlockStore::Lease StepBuffers::residual(int64_t l, int m, Access access, Stream& compute) {
  return residuals_->acquire(static_cast<int>(l) * micro_batches() + m, access, compute);
}

void StepBuffers::prefetch_residual(int64_t l, int m) {
  if (l >= 0 && m >= 0 && m < micro_batches())
    residuals_->prefetch(static_cast<int>(l) * micro_batches() + m);
}

}  // namespace miles
