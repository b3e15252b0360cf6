#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "ops/cuda/backend.h"
#include "ops/cuda/eight.cuh"
#include "ops/embedding.h"

namespace miles::cuda {
namespace {

constexpr int kThreads = 128;

/// A block copies the row that its id names, to or from the table.
template <class Unit, bool kGather>
__global__ void __launch_bounds__(kThreads)
    copy_rows_kernel(const int32_t* ids, Unit* __restrict__ table, Unit* __restrict__ y,
                     int64_t units) {
  Unit* const in_table = table + ids[blockIdx.x] * units;
  Unit* const in_y = y + blockIdx.x * units;
  const Unit* const from = kGather ? in_table : in_y;
  Unit* const to = kGather ? in_y : in_table;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < units; i += kThreads) to[i] = from[i];
}

struct Rows {
  const Tensor &ids, &table, &y;
};

template <bool kGather>
void copy_rows(const Exec& exec, const Rows& rows, const char* op) {
  const int64_t count = rows.y.dim(0), columns = rows.y.dim(1);
  if (count == 0 || columns == 0) return;
  const auto copy = [&](auto unit, int64_t units) {
    using Unit = decltype(unit);
    copy_rows_kernel<Unit, kGather><<<static_cast<unsigned>(count), kThreads, 0, stream_of(exec)>>>(
        pointer<int32_t>(rows.ids), pointer<Unit>(rows.table), pointer<Unit>(rows.y), units);
    check_launch(op);
  };
  const int64_t bytes = columns * size_of(rows.y.dtype());
  if (bytes % 16 == 0 && is_aligned(rows.table.data(), rows.y.data()))
    copy(uint4{}, bytes / 16);
  else if (rows.y.dtype() == DType::f32)
    copy(float{}, columns);
  else
    copy(uint16_t{}, columns);
}

/// Rows of dy in the order of their ids, and in ascending order among equals.
struct Order {
  const int32_t* ids;   // [count] sorted
  const int32_t* rows;  // [count] of dy
  int64_t count;
};

constexpr int kSumThreads = 64;
constexpr int kSumAhead = 8;  // rows that are read before they are added, in order

/// A block per place in the order and slice of columns. The first place of an id sums all its rows,
/// one after the other; the others have nothing to do.
template <class T, bool kWide>
__global__ void __launch_bounds__(kSumThreads)
    embedding_backward_kernel(const Order order, const T* dy, float* dtable, int64_t columns,
                              unsigned slices) {
  const int64_t place = blockIdx.x / slices;
  const int32_t id = order.ids[place];
  if (place > 0 && order.ids[place - 1] == id) return;
  const int64_t i = int64_t{8} * (blockIdx.x % slices * kSumThreads + threadIdx.x);
  const int64_t left = columns - i;
  if (left <= 0) return;
  float* const to = dtable + id * columns + i;
  Eight sum = load<kWide>(to, left);
  for (int64_t begin = place;; begin += kSumAhead) {
    bool mine[kSumAhead];
    Raw<T> ahead[kSumAhead];
#pragma unroll
    for (int k = 0; k < kSumAhead; ++k) {
      mine[k] = begin + k < order.count && order.ids[begin + k] == id;
      if (mine[k]) ahead[k] = load_raw<kWide>(dy + order.rows[begin + k] * columns + i, left);
    }
#pragma unroll
    for (int k = 0; k < kSumAhead; ++k) {
      if (!mine[k]) continue;
      const Eight x = to_f32(ahead[k]);
#pragma unroll
      for (int e = 0; e < 8; ++e) sum.at[e] += x.at[e];
    }
    if (!mine[kSumAhead - 1]) break;
  }
  store<kWide>(to, sum, left);
}

__global__ void count_up_kernel(int32_t* values, int32_t first, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) values[i] = first + static_cast<int32_t>(i);
}

/// What sorting a window of rows takes of the workspace.
struct SortSpace {
  int32_t *sorted_ids, *rows, *sorted_rows;
  void* scratch;
  size_t scratch_bytes;
};

constexpr int64_t kWindow =
    1 << 20;  // rows that are sorted at a time: what the workspace has room for

SortSpace sort_space(const Exec& exec, int64_t count) {
  std::byte* const base = exec.workspace.data();
  const int64_t array = (count * static_cast<int64_t>(sizeof(int32_t)) + 255) / 256 * 256;
  const auto at = [&](int64_t i) { return reinterpret_cast<int32_t*>(base + i * array); };
  return {at(0), at(1), at(2), base + 3 * array,
          exec.workspace.size() - static_cast<size_t>(3 * array)};
}

/// Rows [first, first + count) by id. Radix sort is stable: equal ids stay in ascending order.
Order sorted(const Exec& exec, const EmbeddingBackwardArgs& args, int64_t first, int64_t count) {
  SortSpace space = sort_space(exec, count);
  count_up_kernel<<<blocks_for(count, 256), 256, 0, stream_of(exec)>>>(
      space.rows, static_cast<int32_t>(first), count);
  check_launch("embedding_backward");
  const int bits = std::bit_width(static_cast<uint64_t>(args.dtable.dim(0)));
  const auto sort = [&](void* scratch, size_t& bytes) {
    check(cub::DeviceRadixSort::SortPairs(
              scratch, bytes, pointer<int32_t>(args.ids) + first, space.sorted_ids, space.rows,
              space.sorted_rows, static_cast<int>(count), 0, std::min(bits, 32), stream_of(exec)),
          "embedding_backward: sorting ids");
  };
  size_t need = 0;
  sort(nullptr, need);
  MILES_CHECK(need <= space.scratch_bytes, "embedding_backward: sorting {} ids takes {} bytes",
              count, need);
  sort(space.scratch, need);
  return {space.sorted_ids, space.sorted_rows, count};
}

}  // namespace

void embedding(Exec& exec, const EmbeddingArgs& args) {
  copy_rows<true>(exec, {args.ids, args.table, args.y}, "embedding");
}

void scatter_rows(Exec& exec, const ScatterRowsArgs& args) {
  copy_rows<false>(exec, {args.ids, args.table, args.y}, "scatter_rows");
}

void embedding_backward(Exec& exec, const EmbeddingBackwardArgs& args) {
  const int64_t rows = args.dy.dim(0), columns = args.dy.dim(1);
  if (columns == 0) return;
  const unsigned slices = blocks_for(eights(columns), kSumThreads);
  for (int64_t first = 0; first < rows; first += kWindow) {
    const Order order = sorted(exec, args, first, std::min(kWindow, rows - first));
    with_type(args.dy.dtype(), [&](auto type) {
      using T = decltype(type);
      T* const dy = pointer<T>(args.dy);
      float* const dtable = pointer<float>(args.dtable);
      with_width(is_wide(columns, dy, dtable), [&](auto wide) {
        embedding_backward_kernel<T, wide()>
            <<<blocks_for(order.count * slices, 1), kSumThreads, 0, stream_of(exec)>>>(
                order, dy, dtable, columns, slices);
      });
      check_launch("embedding_backward");
    });
  }
}

}  // namespace miles::cuda
