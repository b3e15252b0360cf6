#include "ops/embedding.h"

#include "tests/ops/op_test.h"

namespace miles::test {
namespace {

template <class T>
class Embedding : public ::testing::Test {
 protected:
  OpBench bench_;
};
TYPED_TEST_SUITE(Embedding, StorageTypes);

TYPED_TEST(Embedding, GathersRowsAndScattersThemBack) {
  using T = TypeParam;
  for (const int64_t columns : {1, 3, 64, 4099}) {
    auto table = normals<T>(7 * columns, 1);
    Values<int32_t> ids = {6, 0, 3};
    Values<T> y(static_cast<size_t>(3 * columns)), back(table.size());
    Exec exec = this->bench_.exec();
    embedding(
        exec,
        {.ids = tensor(ids), .table = tensor(table, {7, columns}), .y = tensor(y, {3, columns})});
    scatter_rows(
        exec,
        {.ids = tensor(ids), .y = tensor(y, {3, columns}), .table = tensor(back, {7, columns})});
    for (size_t n = 0; n < ids.size(); ++n) {
      const auto want = rows_of(table, columns, ids[n], 1);
      EXPECT_TRUE(same_bits(rows_of(y, columns, static_cast<int64_t>(n), 1), want));
      EXPECT_TRUE(same_bits(rows_of(back, columns, ids[n], 1), want));
    }
    const Values<T> untouched(static_cast<size_t>(columns));
    EXPECT_TRUE(same_bits(rows_of(back, columns, 1, 1), untouched));
  }
}

TYPED_TEST(Embedding, BackwardAddsRepeatedIdsInAscendingOrder) {
  using T = TypeParam;
  // The second is wide enough for several blocks of a GPU, in whole eights.
  for (const int64_t columns : {131, 1032, 5}) {
    const int64_t rows = 999, vocab = 5;
    auto dy = normals<T>(rows * columns, 1);
    Values<int32_t> ids;
    for (int64_t n = 0; n < rows; ++n) ids.push_back(static_cast<int32_t>(n * n % vocab));
    const auto before = normals<float>(vocab * columns, 2);
    auto want = before;
    for (int64_t n = 0; n < rows; ++n)
      for (int64_t c = 0; c < columns; ++c)
        want[static_cast<size_t>(ids[static_cast<size_t>(n)] * columns + c)] +=
            to_float(dy[static_cast<size_t>(n * columns + c)]);
    for (const int threads : {1, 2})
      with_threads(threads, [&] {
        auto dtable = before;
        Exec exec = this->bench_.exec();
        embedding_backward(exec, {.ids = tensor(ids),
                                  .dy = tensor(dy, {rows, columns}),
                                  .dtable = tensor(dtable, {vocab, columns})});
        EXPECT_TRUE(same_bits(dtable, want)) << threads;
      });
  }
}

}  // namespace
}  // namespace miles::test
