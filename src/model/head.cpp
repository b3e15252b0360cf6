#include "model/head.h"

#include "ops/gemm.h"
#include "ops/rms_norm.h"

namespace miles {

HeadWeights view_head(const ModelConfig& config, const ParamLayout& layout, std::byte* embed,
                      std::byte* head, DType dtype) {
  HeadWeights weights;
  const HeadOffsets& offsets = layout.head_offsets();
  weights.norm = {head + offsets.norm * size_of(dtype), dtype, {config.hidden_size}};
  std::byte* projection = offsets.lm_head < 0 ? embed : head + offsets.lm_head * size_of(dtype);
  weights.lm_head = {projection, dtype, {config.vocab_size, config.hidden_size}};
  return weights;
}

void head_logits(Exec& exec, const HeadArgs& args) {
  rms_norm(exec, {.x = args.x,
                  .delta = args.delta,
                  .w = args.weights.norm,
                  .y = args.normed,
                  .rstd = args.rstd,
                  .eps = args.eps});
  linear(exec, {.x = args.normed, .w = args.weights.lm_head, .y = args.logits});
}

}  // namespace miles
