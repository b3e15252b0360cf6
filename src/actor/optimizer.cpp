#include "actor/optimizer.h"

#include <algorithm>

#include "ops/adamw.h"

namespace miles {

Optimizer::Optimizer(const OptimizerOptions& options, const ModelConfig& config,
                     const ParamLayout& layout, WeightStore& store)
    : options_(options), config_(config), layout_(layout), store_(store) {
  for (const Chunk& chunk : store.chunks()) spans_.push_back(spans_of(chunk));
}

std::vector<Optimizer::Span> Optimizer::spans_of(const Chunk& chunk) const {
  std::vector<Span> spans;
  for (const ParamSpec& param : layout_.params()) {
    const int64_t begin = std::max(param.offset, chunk.offset);
    const int64_t end = std::min(param.offset + param.elements(), chunk.offset + chunk.elements);
    if (begin >= end) continue;
    const Span span{begin - chunk.offset, end - begin, is_decayed(param)};
    // Neighbours that touch and decay alike are one run: fewer kernels, and the same bits.
    if (!spans.empty() && spans.back().decayed == span.decayed &&
        spans.back().offset + spans.back().elements == span.offset)
      spans.back().elements += span.elements;
    else
      spans.push_back(span);
  }
  return spans;
}

void Optimizer::step(Exec& exec, double grad_norm) {
  const double clip = options_.clip_grad;
  const double scale = clip > 0 ? std::min(1.0, clip / (grad_norm + 1e-6)) : 1.0;
  const DType dtype = config_.dtype;
  const double rate = learning_rate();
  ++steps_;
  BlockStore& states = store_.optimizer();
  BlockStore& gradients = store_.gradients();
  for (size_t c = 0; c < store_.chunks().size(); ++c) {
    const Chunk& chunk = store_.chunks()[c];
    const bool embed = chunk.group < 0, head = chunk.group == layout_.layers();
    BlockStore& weights = embed || head ? store_.weights().ends : store_.weights().layers;
    const int block = embed ? GroupedWeights::kEmbed : head ? GroupedWeights::kHead : chunk.group;
    const auto param = weights.acquire(block, Access::update, exec.stream);
    const auto state = states.acquire(static_cast<int>(c), Access::update, exec.stream);
    const auto gradient = gradients.acquire(static_cast<int>(c), Access::read, exec.stream);
    states.prefetch(static_cast<int>(c) + 1);
    gradients.prefetch(static_cast<int>(c) + 1);
    if (!embed && !head) weights.prefetch(block + 1);
    const ChunkState at = chunk_state(chunk.elements, dtype);
    for (const Span& span : spans_[c]) {
      const auto view = [&](std::byte* base, DType type) {
        return Tensor(base + span.offset * size_of(type), type, {span.elements});
      };
      adamw(exec, {.param = view(param.data() + chunk.group_offset * size_of(dtype), dtype),
                   .low = dtype == DType::f32 ? Tensor{} : view(state.data() + at.low, DType::u16),
                   .m = view(state.data() + at.m, DType::f32),
                   .v = view(state.data() + at.v, DType::f32),
                   .grad = view(gradient.data(), dtype),
                   .grad_scale = static_cast<float>(scale),
                   .lr = static_cast<float>(rate),
                   .beta1 = options_.beta1,
                   .beta2 = options_.beta2,
                   .eps = options_.eps,
                   .weight_decay = span.decayed ? options_.weight_decay : 0.0F,
                   .step = steps_});
    }
  }
}

}  // namespace miles
