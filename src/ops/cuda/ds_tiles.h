// Where attention's backward keeps the gradients of scores, ds, between two of its kernels
// (attention_ds.cuh): in tiles of 64 keys by 64 rows, a row being a token and a head of the group.
// Row tile R of a sequence sees the key tiles 0 … R / group, so many tiles it has; one row tile's
// follow the other's, and one sequence's the other's. Plain C++, so that tests count them anywhere.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define MILES_BOTH __host__ __device__
#else
#define MILES_BOTH
#endif

namespace miles::cuda {

inline constexpr int kDsRows = 64;  // of a tile; and its keys

/// Tiles of a sequence before its row tile's.
MILES_BOTH constexpr int64_t ds_tiles_before(int64_t row_tile, int64_t group) {
  const int64_t whole = row_tile / group;
  return group * (whole * (whole + 1) / 2) + row_tile % group * (whole + 1);
}

/// Tiles of a sequence.
MILES_BOTH constexpr int64_t ds_tiles(int64_t tokens, int64_t group) {
  return ds_tiles_before((tokens + kDsRows - 1) / kDsRows * group, group);
}

/// At least as many as `tokens` in `sequences`, of at most `longest` each, have. With x = t / 64 a
/// sequence of t tokens has T ≤ x + 1 tiles of keys and group · T · (T + 1) / 2 tiles in all, which
/// is at most group · (x² + 3x + 2) / 2; the sum of x² is at most the largest x times their sum.
constexpr int64_t most_ds_tiles(int64_t tokens, int64_t sequences, int64_t longest, int64_t group) {
  const int64_t x = tokens / kDsRows + 1, largest = longest / kDsRows + 1;
  return group * (largest * x + 3 * x + 2 * sequences) / 2;
}

}  // namespace miles::cuda

#undef MILES_BOTH
