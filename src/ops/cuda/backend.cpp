#include "ops/cuda/backend.h"

namespace miles {

const Kernels& cuda_kernels() {
  static constexpr Kernels kKernels = {
      .adamw = cuda::adamw,
      .add = cuda::add,
      .attention = cuda::attention,
      .attention_backward = cuda::attention_backward,
      .cast = cuda::cast,
      .embedding = cuda::embedding,
      .embedding_backward = cuda::embedding_backward,
      .fill_drawn_ids = cuda::fill_drawn_ids,
      .linear = cuda::linear,
      .linear_backward_input = cuda::linear_backward_input,
      .linear_backward_weight = cuda::linear_backward_weight,
      .log_prob = cuda::log_prob,
      .log_prob_backward = cuda::log_prob_backward,
      .qkv_split = cuda::qkv_split,
      .qkv_split_backward = cuda::qkv_split_backward,
      .rms_norm = cuda::rms_norm,
      .rms_norm_backward = cuda::rms_norm_backward,
      .sample = cuda::sample,
      .scatter_rows = cuda::scatter_rows,
      .sum_of_squares = cuda::sum_of_squares,
      .swiglu = cuda::swiglu,
      .swiglu_backward = cuda::swiglu_backward,
  };
  return kKernels;
}

}  // namespace miles
