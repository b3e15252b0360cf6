// What the kernels of attention and of splitting heads are built for.
#pragma once

#include <cstdint>

namespace miles {

/// Elements of a head, at most: kernels keep one on their stack, or 64 in the workspace. The ops'
/// checks refuse more.
inline constexpr int64_t kMaxHeadDim = 512;

}  // namespace miles
