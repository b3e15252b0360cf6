#pragma once

namespace miles::cuda {

/// Whether this program was compiled for the current device, or for one whose code it can run.
bool has_kernels_for_this_device();

}  // namespace miles::cuda
