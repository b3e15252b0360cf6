#include "ops/drawn_ids.h"

#include "tests/ops/op_test.h"

namespace miles::test {
namespace {

TEST(FillDrawnIds, PutsInTokensByTheirDrawsAndLeavesTheOthers) {
  OpBench bench;
  Exec exec = bench.exec();
  for (const int64_t count : {1, 255, 257, 3000}) {
    Values<int32_t> drawn(static_cast<size_t>(count)), ids, want;
    for (int64_t n = 0; n < count; ++n) {
      const auto draw = static_cast<size_t>(n * 7 % count);
      drawn[static_cast<size_t>(n)] = n % 5 == 3 ? -1 : static_cast<int32_t>(1000 + n);  // −1: none
      const bool known = n % 3 == 1;
      ids.push_back(known ? static_cast<int32_t>(n) : id_of_draw(static_cast<int64_t>(draw)));
      const bool failed = draw % 5 == 3;
      want.push_back(known    ? static_cast<int32_t>(n)
                     : failed ? 0
                              : static_cast<int32_t>(1000 + draw));
    }
    fill_drawn_ids(exec, {.ids = tensor(ids), .drawn = tensor(drawn)});
    EXPECT_TRUE(same_bits(ids, want)) << count;
  }
}

}  // namespace
}  // namespace miles::test
