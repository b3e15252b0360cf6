// Attention of heads of 64 and 128 elements on Hopper's matrix instructions.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace miles::cuda {

namespace attention_forward {
struct Forward;
}
namespace attention_gradient {
struct Backward;
}

/// Whether the current device is one whose blocks may have kHopperShared bytes, and the build has code
/// for it.
bool has_hopper_kernels();

/// The sequences of more than few_rows rows, of `tokens` in all.
void attention_hopper(const attention_forward::Forward& f, int64_t tokens, cudaStream_t stream);
/// Of key heads first_head … first_head + heads − 1, whose statistics are there.
void attention_backward_hopper(const attention_gradient::Backward& f, int heads,
                               cudaStream_t stream);

}  // namespace miles::cuda
