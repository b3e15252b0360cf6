// The CPU's kernels: one table per instruction set that this build has, and the choice at start.
#pragma once

#include "ops/backend.h"

namespace miles {

/// The widest instruction set of this build that the processor has, or the one that the environment
/// variable MILES_ISA names (baseline, avx2, avx512). Chosen once.
/// Throws Error{flags} when MILES_ISA names one that the build or the processor lacks.
const Kernels& cpu_kernels();

}  // namespace miles
