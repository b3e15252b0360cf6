#include "actor/weight_store.h"

#include <algorithm>

namespace miles {
namespace {

constexpr int kWindow = 2;  // one block computes, the next is on its way

int64_t aligned(int64_t bytes) {
  return (bytes + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
}

const Group& group_at(const ParamLayout& layout, int group) {
  if (group < 0) return layout.embed();
  return group == layout.layers() ? layout.head() : layout.layer(group);
}

}  // namespace

ChunkState chunk_state(int64_t elements, DType dtype) {
  ChunkState state;
  if (dtype != DType::f32) state.m = aligned(elements * size_of(DType::u16));
  state.v = state.m + aligned(elements * size_of(DType::f32));
  state.bytes = state.v + aligned(elements * size_of(DType::f32));
  return state;
}

std::vector<Chunk> make_chunks(const ParamLayout& layout) {
  const int64_t largest = layout.layer(0).elements;
  std::vector<Chunk> chunks;
  for (int group = -1; group <= layout.layers(); ++group) {
    const Group& span = group_at(layout, group);
    for (int64_t done = 0; done < span.elements; done += largest)
      chunks.push_back({group, done, span.offset + done, std::min(largest, span.elements - done)});
  }
  return chunks;
}

void GroupedWeights::onload() {
  layers.onload();
  ends.onload();
}

void GroupedWeights::offload() {
  layers.offload();
  ends.offload();
}

WeightStore::WeightStore(const ActorOptions& options, const ModelConfig& config,
                         const ParamLayout& layout, Memory memory, CopyStreams& copies)
    : config_(config),
      layout_(layout),
      placement_(options.placement),
      place_(placement_ == ActorPlacement::resident ? Place::device : Place::host),
      chunks_(make_chunks(layout)) {
  for (int c = 0; c < static_cast<int>(chunks_.size()); ++c)  // a group has one at least
    if (chunks_[static_cast<size_t>(c)].group_offset == 0) first_chunk_.push_back(c);
  first_chunk_.push_back(static_cast<int>(chunks_.size()));
  const int64_t weight_bytes = layout.elements() * size_of(config.dtype);
  const auto home = [&](const char* what) {
    return (place_ == Place::host ? "store." : "actor.") + std::string(what);
  };
  weight_home_ = Region(memory, place_, home("params"), weight_bytes);
  weight_home_.commit();
  weights_.emplace(group_weights(memory, copies, weight_home_.data(), "actor.params",
                                 slot_counts(options.resident_layers, layout.layers())));
  make_optimizer(options, home("optimizer"), memory, copies);
  make_gradients(options, memory, copies);
  if (!options.with_reference) return;
  reference_home_ = Region(memory, place_, home("reference"), weight_bytes);
  reference_home_.commit();
  reference_.emplace(group_weights(memory, copies, reference_home_.data(), "actor.reference",
                                   {.window = kWindow}));
}

WeightStore::SlotCounts WeightStore::slot_counts(int64_t resident, int64_t blocks) const {
  if (!streamed() || resident >= blocks - kWindow) return {0, static_cast<int>(blocks)};
  return {kWindow, static_cast<int>(resident)};
}

void WeightStore::make_optimizer(const ActorOptions& options, const std::string& home_tag,
                                 Memory memory, CopyStreams& copies) {
  int64_t bytes = 0;
  for (const Chunk& chunk : chunks_) {
    state_spans_.push_back({bytes, chunk_state(chunk.elements, config_.dtype).bytes});
    bytes += state_spans_.back().bytes;
  }
  state_home_ = Region(memory, place_, home_tag, bytes);
  state_home_.commit();
  const SlotCounts counts = slot_counts(options.resident_states, std::ssize(chunks_));
  optimizer_.emplace(memory, copies,
                     BlockStoreOptions{.home_place = place_,
                                       .home = state_home_.data(),
                                       .blocks = state_spans_,
                                       .tag = "actor.optimizer",
                                       .slots = counts.window,
                                       .resident = counts.resident});
}

void WeightStore::make_gradients(const ActorOptions& options, Memory memory, CopyStreams& copies) {
  // Streamed ones leave for the host, but for those that live and die in their slots; otherwise all
  // stay on the device until the step is done.
  const int64_t layers = options.resident_layers, chunks = std::ssize(chunks_);
  const SlotCounts counts =
      slot_counts(layers == 0                 ? 0
                  : layers < layout_.layers() ? chunks_of(static_cast<int>(layers)).first
                                              : chunks,
                  chunks);
  const int first = streamed() ? counts.resident : 0;  // that has a home
  const int64_t begin =
      first < chunks ? chunks_[static_cast<size_t>(first)].offset : layout_.elements();
  const int64_t size = size_of(config_.dtype);
  std::vector<BlockSpan> spans;
  for (const Chunk& chunk : chunks_)
    spans.push_back({std::max<int64_t>(0, chunk.offset - begin) * size, chunk.elements * size});
  const Place place = streamed() ? Place::host : Place::device;
  gradient_home_ = Region(memory, place, streamed() ? "store.grads" : "actor.grads",
                          (layout_.elements() - begin) * size);
  if (streamed()) gradient_home_.commit();
  gradients_.emplace(memory, copies,
                     BlockStoreOptions{.home_place = place,
                                       .home = gradient_home_.data(),
                                       .blocks = std::move(spans),
                                       .tag = "actor.grads",
                                       .slots = counts.window,
                                       .resident = counts.resident,
                                       .homeless = true});
}

GroupedWeights WeightStore::group_weights(Memory memory, CopyStreams& copies, std::byte* home,
                                          const std::string& tag, SlotCounts for_layers) const {
  const int64_t size = size_of(config_.dtype);
  const auto span = [&](const Group& group) {
    return BlockSpan{group.offset * size, group.elements * size};
  };
  std::vector<BlockSpan> layers;
  for (int64_t l = 0; l < layout_.layers(); ++l) layers.push_back(span(layout_.layer(l)));
  const auto store = [&](std::vector<BlockSpan> blocks, SlotCounts counts) {
    return BlockStore(memory, copies,
                      {.home_place = place_,
                       .home = home,
                       .blocks = std::move(blocks),
                       .tag = tag,
                       .slots = counts.window,
                       .resident = counts.resident});
  };
  return {store(std::move(layers), for_layers),
          store({span(layout_.embed()), span(layout_.head())}, {})};
}

std::pair<int, int> WeightStore::chunks_of(int group) const {
  const auto index = static_cast<size_t>(int64_t{group} + 1);
  return {first_chunk_[index], first_chunk_[index + 1]};
}

GroupedWeights& WeightStore::reference() {
  MILES_CHECK(reference_.has_value(), "no reference was asked for");
  return *reference_;
}

Tensor WeightStore::at_rest() const {
  return weight_home_.tensor(config_.dtype, {layout_.elements()});
}

Tensor WeightStore::reference_at_rest() const {
  return reference_home_.tensor(config_.dtype, {layout_.elements()});
}

std::byte* WeightStore::state_at_rest(int chunk) const {
  return state_home_.data() + state_spans_[static_cast<size_t>(chunk)].offset;
}

void WeightStore::release_gradients() {
  if (!streamed()) gradient_home_.release();
}

}  // namespace miles
