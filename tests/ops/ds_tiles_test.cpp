// Where CUDA's attention keeps gradients of scores: counted on any machine.
#include "ops/cuda/ds_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/rng.h"

namespace miles::cuda {
namespace {

TEST(DsTiles, EveryRowTileHasThoseThatItsLastRowSees) {
  for (const int64_t group : {1, 2, 3, 7, 8})
    for (const int64_t tokens : {1, 63, 64, 65, 128, 300}) {
      const int64_t rows = tokens * group;
      int64_t count = 0;
      for (int64_t tile = 0; tile * kDsRows < rows; ++tile) {
        EXPECT_EQ(ds_tiles_before(tile, group), count) << tile << " of " << group;
        const int64_t last = std::min(rows, (tile + 1) * kDsRows) - 1;
        count += last / group / kDsRows + 1;
      }
      EXPECT_LE(count, ds_tiles(tokens, group)) << tokens << " tokens by " << group;
    }
}

TEST(DsTiles, NoBatchHasMoreThanTheMost) {
  uint64_t draw = 0;
  const auto random = [&](int64_t below) {
    return static_cast<int64_t>(
        uniform_below(static_cast<uint64_t>(below), 3, RngUse::test, 0, draw++));
  };
  for (int batch = 0; batch < 3000; ++batch) {
    const int64_t group = 1 + random(9), sequences = 1 + random(20);
    const int64_t scale = int64_t{1} << random(13);
    std::vector<int64_t> lengths;
    for (int64_t b = 0; b < sequences; ++b) lengths.push_back(random(scale + 1));
    const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    int64_t tiles = 0;
    for (const int64_t length : lengths) tiles += ds_tiles(length, group);
    const int64_t most = most_ds_tiles(tokens, sequences, longest, group);
    ASSERT_LE(tiles, most) << tokens << " tokens in " << sequences << " of at most " << longest;
    // Nor is it much more where sequences are about as long as the longest.
    if (tokens * 2 > longest * sequences && longest > 1000) {
      ASSERT_LE(most, 3 * tiles) << tokens << " tokens in " << sequences;
    }
  }
}

}  // namespace
}  // namespace miles::cuda
