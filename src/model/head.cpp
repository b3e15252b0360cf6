#include "model/head.h"

#include "ops/gemm.h"
#include "ops/rms_norm.h"

namespace miles {

HeadWeights view_head(const ModelConfig& config, const ParamLayout& layout, std::byte* embed,
                      std::byte* head, DType dtype) {
  HeadWeights weights;
  weights.norm = {head, dtype, {config.hidden_size}};
  std::byte* projection = embed;
  if (!config.tie_word_embeddings) {
    const ParamSpec& spec = layout.params().back();
    projection = head + (spec.offset - layout.head().offset) * size_of(dtype);
  }
  weights.lm_head = {projection, dtype, {config.vocab_size, config.hidden_size}};
  return weights;
}

void head_logits(Exec& exec, const HeadArgs& args) {
  rms_norm(exec, {.x = args.x,
                  .delta = {},
                  .w = args.weights.norm,
                  .y = args.normed,
                  .rstd = args.rstd,
                  .eps = args.eps});
  linear(exec, {.x = args.normed, .w = args.weights.lm_head, .y = args.logits});
}

}  // namespace miles
