// Attention of heads of 64 and 128 elements on Hopper's matrix instructions.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/attention.h"

namespace miles::cuda {

namespace attention_forward {
struct Forward;
}
namespace attention_gradient {
struct Backward;
}

/// Whether the current device is one, and the build has code for it.
bool has_hopper_kernels();

/// The sequences of more than few_rows rows, of `tokens` in all.
void attention_hopper(const attention_forward::Forward& f, int64_t tokens, cudaStream_t stream);
/// Gives `f` the scratch for its gradients of scores when that holds those of enough key heads to
/// keep the device busy. Returns how many key heads to launch at a time, of the `most` that could
/// be.
int keep_scores_of(attention_gradient::Backward& f, const AttentionBackwardArgs& args, int most);
/// Of key heads first_head … first_head + heads − 1, whose statistics are there.
void attention_backward_hopper(const attention_gradient::Backward& f, int heads,
                               cudaStream_t stream);

}  // namespace miles::cuda
