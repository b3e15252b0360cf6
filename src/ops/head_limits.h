// What the kernels of attention and of splitting heads are built for.
#pragma once

#include <cstdint>

namespace miles {

/// Elements of a head, at most: kernels keep a head on their stack or in their registers, or a tile
/// of 64 heads in the workspace. The ops' checks refuse more.
inline constexpr int64_t kMaxHeadDim = 512;

}  // namespace miles
