#include "ops/embedding.h"

#include "ops/cpu/row_loops.h"

namespace miles::MILES_ISA {
namespace {

/// Columns of dtable that one task accumulates, over all rows in order.
constexpr int64_t kColumnBlock = 128;

template <class T>
void gather(const EmbeddingArgs& a) {
  const int64_t rows = extent(a.y, 0), columns = extent(a.y, 1);
  const int32_t* const ids = elements<int32_t>(a.ids);
  const T* const table = elements<T>(a.table);
  T* const y = elements<T>(a.y);
#pragma omp parallel for schedule(static) if (rows * columns > 4 * kSerialElements)
  for (int64_t n = 0; n < rows; ++n)
    __builtin_memcpy(y + n * columns, table + ids[n] * columns,
                     static_cast<size_t>(columns) * sizeof(T));
}

template <class T>
void scatter(const ScatterRowsArgs& a) {
  const int64_t rows = extent(a.y, 0), columns = extent(a.y, 1);
  const int32_t* const ids = elements<int32_t>(a.ids);
  const T* const y = elements<T>(a.y);
  T* const table = elements<T>(a.table);
#pragma omp parallel for schedule(static) if (rows * columns > 4 * kSerialElements)
  for (int64_t n = 0; n < rows; ++n)
    __builtin_memcpy(table + ids[n] * columns, y + n * columns,
                     static_cast<size_t>(columns) * sizeof(T));
}

template <class T>
void accumulate(const EmbeddingBackwardArgs& a) {
  const int64_t rows = extent(a.dy, 0), columns = extent(a.dy, 1);
  const int32_t* const ids = elements<int32_t>(a.ids);
  const T* const dy = elements<T>(a.dy);
  float* const dtable = elements<float>(a.dtable);
#pragma omp parallel for schedule(static) if (rows * columns > kSerialElements)
  for (int64_t begin = 0; begin < columns; begin += kColumnBlock) {
    const int64_t width = smaller(kColumnBlock, columns - begin);
    for (int64_t n = 0; n < rows; ++n) {
      float* const to = dtable + ids[n] * columns + begin;
      const T* const from = dy + n * columns + begin;
      for_each_vec(width, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
        store(to + i, load(to + i, count) + load(from + i, count), count);
      });
    }
  }
}

}  // namespace

void embedding(Exec&, const EmbeddingArgs& args) {
  if (args.y.dtype() == DType::bf16) return gather<BFloat16>(args);
  gather<float>(args);
}

void scatter_rows(Exec&, const ScatterRowsArgs& args) {
  if (args.y.dtype() == DType::bf16) return scatter<BFloat16>(args);
  scatter<float>(args);
}

void embedding_backward(Exec&, const EmbeddingBackwardArgs& args) {
  if (args.dy.dtype() == DType::bf16) return accumulate<BFloat16>(args);
  accumulate<float>(args);
}

}  // namespace miles::MILES_ISA
