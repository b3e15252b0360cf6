// y = x · wᵀ as dot products in f32: the forward of f32 everywhere, and of bf16 on a CPU without
// AMX.
//
// Why not oneDNN: on an AVX2 machine the rows of its f32 products (2.6.3; matmul, inner product and
// sgemm, weights plain or packed) change bits with M and with the number of threads at every shape
// measured.
//
// Here one element is always computed the same way, so rows are invariant by construction: K is cut
// at multiples of kDepth; in a piece, lane l is one chain of multiply-adds over k ≡ l (mod kWidth);
// a piece's lanes are added in one tree, and the pieces in ascending order. Blocking only decides
// when an element's turn comes.
#include <omp.h>

#include "ops/cpu/gemm.h"
#include "ops/cpu/simd.h"

namespace miles::MILES_ISA {
namespace {

constexpr int64_t kDepth = 512;  // k's in a piece
constexpr int kColumns = 4;      // of a register tile
constexpr int64_t kStrip = 8;    // packed columns: with a tile's rows they fit in the L1
constexpr int kRows = kWidth == 16  ? 6
                      : kWidth == 8 ? 3
                                    : 2;       // of a register tile: what registers hold
constexpr int64_t kRowBlock = 96;              // rows of a task, at most
constexpr int64_t kColumnBlock = 256;          // columns of a task, at most
constexpr int64_t kPanelStride = kDepth + 16;  // keeps packed columns in different sets of the L1
constexpr int64_t kMinParallelWork = 1 << 16;  // multiply-adds; below, waking threads costs more

static_assert(kRowBlock % kRows == 0 && kDepth % kWidth == 0);

/// One thread's share of the workspace.
struct Scratch {
  float x[kRowBlock * kDepth];  // packed rows: groups of kRows, each [depth / kWidth, rows, kWidth]
  float w[kStrip * kPanelStride];     // packed columns
  float y[kRowBlock * kColumnBlock];  // sums
};
static_assert(sizeof(Scratch) <= kWorkspaceBytes && sizeof(Scratch) % 64 == 0);

/// Rows × columns of y that one thread computes.
struct Task {
  int64_t row, rows;
  int64_t column, columns;
};

int64_t round_up(int64_t value, int64_t step) {
  return (value + step - 1) / step * step;
}

#if defined(__AVX2__)
MILES_INLINE __m256 half_sum(Vec x) {
#if defined(__AVX512F__)
  return __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
         __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
#else
  return x;
#endif
}

/// y[c] += the sum of a[c]'s lanes.
MILES_INLINE void add_sums(const Vec (&a)[kColumns], float* y) {
  const __m256 low = _mm256_hadd_ps(half_sum(a[0]), half_sum(a[1]));
  const __m256 high = _mm256_hadd_ps(half_sum(a[2]), half_sum(a[3]));
  const __m256 s = _mm256_hadd_ps(low, high);
  const __m128 sum = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  _mm_storeu_ps(y, _mm_add_ps(_mm_loadu_ps(y), sum));
}
#else
MILES_INLINE void add_sums(const Vec (&a)[kColumns], float* y) {
  for (int c = 0; c < kColumns; ++c) y[c] += (a[c][0] + a[c][1]) + (a[c][2] + a[c][3]);
}
#endif

/// y[r, c] += Σ_k x[r, k] · w[c, k] over one piece; `depth` is a multiple of kWidth.
template <int R, class W>
void add_tile(const float* x, const W* w, int64_t w_stride, int64_t depth, float* y) {
  // One assignment each: an initialiser list becomes a "rep stos", which costs a third of a short
  // sum.
  Vec sum[R][kColumns];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < kColumns; ++c) sum[r][c] = Vec{};
  for (int64_t k = 0; k < depth; k += kWidth) {
    Vec row[R];  // rows are held, columns pass by: one register more than that would spill
    for (int r = 0; r < R; ++r) row[r] = load(x + k * R + r * kWidth);
    for (int c = 0; c < kColumns; ++c) {
      const Vec column = load(w + c * w_stride + k);
      for (int r = 0; r < R; ++r) sum[r][c] = madd(row[r], column, sum[r][c]);
    }
  }
  for (int r = 0; r < R; ++r) add_sums(sum[r], y + r * kColumnBlock);
}

template <class W>
void add_tile(int64_t rows, const float* x, const W* w, int64_t w_stride, int64_t depth, float* y) {
  switch (rows) {
    case 1:
      return add_tile<1>(x, w, w_stride, depth, y);
    case 2:
      return add_tile<2>(x, w, w_stride, depth, y);
#if defined(__AVX2__)
    case 3:
      return add_tile<3>(x, w, w_stride, depth, y);
#endif
#if defined(__AVX512F__)
    case 4:
      return add_tile<4>(x, w, w_stride, depth, y);
    case 5:
      return add_tile<5>(x, w, w_stride, depth, y);
    case 6:
      return add_tile<6>(x, w, w_stride, depth, y);
#endif
    default:
      __builtin_unreachable();
  }
}

/// One task for operands of type T.
template <class T>
struct Product {
  const DotArgs& a;
  const Task& task;
  Scratch& s;
  int64_t depth = 0;   // k's whose rows are packed now
  int64_t padded = 0;  // the same, rounded up to whole vectors

  int64_t rows_at(int64_t r) const { return smaller(kRows, task.rows - r); }

  void pack_rows(int64_t first_k) {
    for (int64_t r = 0; r < task.rows; r += kRows) {
      const T* x = static_cast<const T*>(a.x) + (task.row + r) * a.k + first_k;
      const int64_t rows = rows_at(r);
      float* packed = s.x + r * padded;
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t k = 0; k < depth; k += kWidth)
          store(packed + k * rows + i * kWidth,
                load(x + i * a.k + k, static_cast<int>(smaller(kWidth, depth - k))));
    }
  }

  /// Packs a strip in f32. Columns past `columns` become zeros; so do k's past `length`.
  void pack_columns(const T* w, int64_t columns, int64_t length) {
    for (int64_t c = 0; c < kStrip; ++c)
      for (int64_t k = 0; k < length; k += kWidth) {
        const int count = static_cast<int>(smaller(kWidth, length - k));
        store(s.w + c * kPanelStride + k, c < columns ? load(w + c * a.k + k, count) : Vec{});
      }
  }

  /// All rows × `columns` of w (whole register tiles) over the piece; a tile's rows stay in the L1
  /// meanwhile.
  template <class W>
  void add_rows(int64_t column, int64_t columns, int64_t piece, const W* w, int64_t w_stride,
                int64_t length) {
    for (int64_t r = 0; r < task.rows; r += kRows)
      for (int64_t c = 0; c < columns; c += kColumns)
        add_tile(rows_at(r), s.x + r * padded + piece * rows_at(r), w + c * w_stride, w_stride,
                 length, s.y + r * kColumnBlock + column + c);
  }

  /// A strip × all rows × the piece that starts at first_k + piece.
  void add_strip(int64_t column, int64_t first_k, int64_t piece) {
    const int64_t length = smaller(kDepth, depth - piece);
    const int64_t columns = smaller(kStrip, task.columns - column);
    const T* w = static_cast<const T*>(a.w) + (task.column + column) * a.k + first_k + piece;
    const bool whole = columns % kColumns == 0 && length % kWidth == 0;
    // Weights that few rows will read are read where they lie.
    const bool reused = task.rows > (sizeof(T) < sizeof(float) ? kRows : 4 * kRows);
    if (whole && !reused) return add_rows(column, columns, piece, w, a.k, length);
    pack_columns(w, columns, length);
    add_rows(column, round_up(columns, kColumns), piece, s.w, kPanelStride,
             round_up(length, kWidth));
  }

  template <class Y>
  void write() const {
    for (int64_t r = 0; r < task.rows; ++r) {
      Y* y = static_cast<Y*>(a.y) + (task.row + r) * a.n + task.column;
      const float* sum = s.y + r * kColumnBlock;
      for (int64_t c = 0; c < task.columns; c += kWidth)
        store(y + c, load(sum + c), static_cast<int>(smaller(kWidth, task.columns - c)));
    }
  }

  void run() {
    for (int64_t r = 0; r < task.rows; ++r)
      for (int64_t c = 0; c < task.columns; c += kWidth) store(s.y + r * kColumnBlock + c, Vec{});
    // As many pieces as fit are packed at once: a few rows then read each w in one run.
    const int64_t span = kRowBlock / round_up(task.rows, kRows) * kDepth;
    for (int64_t k = 0; k < a.k; k += span) {
      depth = smaller(span, a.k - k);
      padded = round_up(depth, kWidth);
      pack_rows(k);
      for (int64_t c = 0; c < task.columns; c += kStrip)
        for (int64_t piece = 0; piece < depth; piece += kDepth) add_strip(c, k, piece);
    }
    if (a.y_is_f32)
      write<float>();
    else
      write<BFloat16>();
  }
};

void linear_dot(const DotArgs& a) {
  const int64_t room = a.workspace_bytes / static_cast<int64_t>(sizeof(Scratch));
  const bool small = a.m * a.n * a.k < kMinParallelWork;
  const int64_t threads = small ? 1 : smaller(omp_get_max_threads(), room);
  const int64_t row_blocks = (a.m + kRowBlock - 1) / kRowBlock;
  // Narrow enough that each thread gets several tasks; the width changes no bit.
  const int64_t share = round_up(a.n * row_blocks / (4 * threads) + 1, 16);
  const int64_t width = smaller(share, kColumnBlock);
  const int64_t column_blocks = (a.n + width - 1) / width;
  auto* scratch = reinterpret_cast<Scratch*>(a.workspace);
#pragma omp parallel for schedule(dynamic) num_threads(static_cast <int>(threads)) if (threads > 1)
  for (int64_t i = 0; i < row_blocks * column_blocks; ++i) {
    const int64_t row = i / column_blocks * kRowBlock, column = i % column_blocks * width;
    const Task task{row, smaller(kRowBlock, a.m - row), column, smaller(width, a.n - column)};
    Scratch& mine = scratch[omp_get_thread_num()];
    if (a.x_is_f32)
      Product<float>{a, task, mine}.run();
    else
      Product<BFloat16>{a, task, mine}.run();
  }
}

}  // namespace

void linear(Exec& exec, const LinearArgs& args) {
  const DotArgs a = dot_args(exec, args);
  if (!a.x_is_f32 && use_amx(a.k)) return linear_amx(exec, args);
  linear_dot(a);
}

}  // namespace miles::MILES_ISA
