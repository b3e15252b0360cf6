// For timing: what a kernel finds in the device's L2.
#pragma once

#include "ops/backend.h"

namespace miles::cuda {

/// Enqueues a read of the whole workspace, which is larger than an L2: afterwards nothing else is
/// in it, and nothing there waits to be written back.
void fill_cache_with_workspace(const Exec& exec);

}  // namespace miles::cuda
