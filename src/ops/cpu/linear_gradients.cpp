// The gradients of `linear`: bf16 on the matrix unit where there is one, else oneDNN's
// (gemm_backward.cpp).
//
// Both are C = A · B with B as it lies in memory, [inner, columns]: dx = dy · w and dw = dyᵀ · x. A
// block of B is packed for all threads, into half an L2, and a panel of A's rows by the thread that
// multiplies it; 32 × 32 of C are then summed in tiles over up to kInner of the inner extent. So an
// element of C is one chain, cut where its shape says: neither threads nor neighbours change a bit.
#include <omp.h>

#include "ops/cpu/gemm.h"
#include "ops/cpu/row_loops.h"
#include "ops/cpu/tile_unit.h"
#include "ops/cpu/transpose16.h"
#include "ops/gemm.h"

namespace miles::MILES_ISA {

#if defined(__AVX512F__)
namespace {

constexpr int64_t kSide = 2 * kUnitRows;              // rows, and columns, of C that tiles hold
constexpr int64_t kStep = 2 * kUnitRows * kUnitRows;  // words of a panel's two tiles, 32 k
constexpr int64_t kInner = 1024;                      // at once; C is reloaded after as many
constexpr int64_t kPacked = 512 * kInner;             // elements of B at once: 1 MiB
constexpr int64_t kSumRows = 2048;                    // of C that are kept in f32 beside it
constexpr int64_t kSumColumns = kPacked / kInner;     // of the same
constexpr int64_t kMostThreads = 48;
constexpr int64_t kMinParallelWork = 1 << 18;  // multiply-adds; below, waking threads costs more
static_assert(2 * kPacked + 4 * kSumRows * kSumColumns + kMostThreads * 2 * kSide * kInner <=
              kWorkspaceBytes);

MILES_INLINE int64_t round_up(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}

/// Rows 2i and 2i + 1 side by side: words[h][i][c] = (from[2i, 16h + c], from[2i + 1, 16h + c]);
/// zeros beyond `rows` and `columns`.
MILES_INLINE void pair_rows(const BFloat16* from, int64_t stride, int64_t rows, int64_t columns,
                            __m512i (&words)[2][kUnitRows]) {
  const __m512i first = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
  const __m512i second = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
  const auto mask = static_cast<__mmask32>((uint64_t{1} << smaller(columns, kSide)) - 1);
  for (int i = 0; i < kUnitRows; ++i) {
    __m512i row[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (int odd = 0; odd < 2; ++odd)
      if (2 * i + odd < rows)
        row[odd] = _mm512_maskz_loadu_epi16(mask, from + (2 * i + odd) * stride);
    const __m512i low = _mm512_unpacklo_epi16(row[0], row[1]);
    const __m512i high = _mm512_unpackhi_epi16(row[0], row[1]);
    words[0][i] = _mm512_permutex2var_epi64(low, first, high);
    words[1][i] = _mm512_permutex2var_epi64(low, second, high);
  }
}

/// The left operand: [rows, inner] as it lies, or the transpose of what lies as [inner, rows].
struct Left {
  const BFloat16* data;
  int64_t stride;  // of what lies
  bool transposed;

  /// to[step, 2, 16 rows, 32 k]: 32 rows from `row` on, `depth` k from `k` on, zeros beyond.
  void pack(int64_t row, int64_t rows, int64_t k, int64_t depth, uint32_t* to) const {
    for (int64_t t = 0; t < depth; t += kSide, to += kStep) {
      __m512i words[2][kUnitRows];
      if (transposed) {
        pair_rows(data + (k + t) * stride + row, stride, depth - t, rows, words);
        transpose16(words[0]);
        transpose16(words[1]);
      } else {
        const auto mask = static_cast<__mmask32>((uint64_t{1} << smaller(depth - t, kSide)) - 1);
        for (int64_t i = 0; i < kSide; ++i)
          words[i / kUnitRows][i % kUnitRows] =
              i < rows ? _mm512_maskz_loadu_epi16(mask, data + (row + i) * stride + k + t)
                       : _mm512_setzero_si512();
      }
      for (int64_t i = 0; i < kSide; ++i)
        _mm512_store_si512(to + i * kUnitRows, words[i / kUnitRows][i % kUnitRows]);
    }
  }

  /// Asks for the `index`th of the `depth` cache lines that pack will read.
  void prefetch(int64_t row, int64_t k, int64_t index) const {
    const int64_t at = transposed ? (k + index) * stride + row
                                  : (row + index % kSide) * stride + k + index / kSide * kSide;
    _mm_prefetch(reinterpret_cast<const char*>(data + at), _MM_HINT_T1);
  }
};

/// A block of C in f32.
struct Sums {
  float* data;
  int64_t stride;
};

/// A panel of A times a panel of B: to = from + A·B; without `from`, A·B.
template <class Unit>
void multiply_panels(const uint32_t* a, const uint32_t* b, int64_t depth, Sums from, Sums to) {
  constexpr int64_t kLine = 64, kTile = kUnitRows * kUnitRows;
  if (from.data != nullptr) {
    const int64_t bytes = 4 * from.stride;
    float* const lower = from.data + kUnitRows * from.stride;
    Unit::template load<0>(from.data, bytes);
    Unit::template load<1>(from.data + kUnitRows, bytes);
    Unit::template load<2>(lower, bytes);
    Unit::template load<3>(lower + kUnitRows, bytes);
  } else {
    Unit::template zero<0>();
    Unit::template zero<1>();
    Unit::template zero<2>();
    Unit::template zero<3>();
  }
  for (int64_t t = 0; t < depth; t += kSide, a += kStep, b += kStep) {
    Unit::template load<4>(a, kLine);
    Unit::template load<6>(b, kLine);
    Unit::template multiply<0, 4, 6>();
    Unit::template load<7>(b + kTile, kLine);
    Unit::template multiply<1, 4, 7>();
    Unit::template load<5>(a + kTile, kLine);
    Unit::template multiply<2, 5, 6>();
    Unit::template multiply<3, 5, 7>();
  }
  const int64_t bytes = 4 * to.stride;
  float* const lower = to.data + kUnitRows * to.stride;
  Unit::template store<0>(to.data, bytes);
  Unit::template store<1>(to.data + kUnitRows, bytes);
  Unit::template store<2>(lower, bytes);
  Unit::template store<3>(lower + kUnitRows, bytes);
}

struct ProductArgs {
  Left a;             // [rows, inner]
  const BFloat16* b;  // [inner, columns]
  void* c;            // [rows, columns]
  bool c_is_f32;      // else bf16
  bool add;           // to what C holds
  int64_t rows, columns, inner;
};

/// Which part of the product is at work.
struct Part {
  int64_t row, rows;        // of C, at most kSumRows when it is bf16
  int64_t column, columns;  // of C: of the packed block of B
  int64_t k, depth;         // of the inner extent
  bool first, last;         // of the parts of an element's sum
};

template <class Unit>
class Product {
 public:
  Product(Exec& exec, const ProductArgs& p)
      : p_(p),
        b_(reinterpret_cast<uint32_t*>(exec.workspace.data())),
        sums_(reinterpret_cast<float*>(b_ + kPacked / 2)),
        a_(reinterpret_cast<uint32_t*>(sums_ + kSumRows * kSumColumns)) {}

  void run() {
    const bool parallel = p_.rows * p_.columns * p_.inner >= kMinParallelWork;
    const int threads =
        parallel ? static_cast<int>(smaller(omp_get_max_threads(), kMostThreads)) : 1;
    const int64_t depth = smaller(round_up(p_.inner, kSide), kInner);
    const int64_t width = kPacked / depth / kSide * kSide;
    const int64_t height = p_.c_is_f32 ? p_.rows : kSumRows;
#pragma omp parallel num_threads(threads) if (parallel)
    {
      Unit::begin();
      for (int64_t row = 0; row < p_.rows; row += height)
        for (int64_t column = 0; column < p_.columns; column += width)
          for (int64_t k = 0; k < p_.inner; k += kInner)
            run_part({.row = row,
                      .rows = smaller(height, p_.rows - row),
                      .column = column,
                      .columns = smaller(width, p_.columns - column),
                      .k = k,
                      .depth = smaller(kInner, p_.inner - k),
                      .first = k == 0,
                      .last = k + kInner >= p_.inner},
                     threads);
      Unit::end();
    }
  }

 private:
  /// By all threads.
  void run_part(const Part& part, int threads) {
    const int64_t size = round_up(part.depth, kSide) * kSide / 2;  // words of a packed panel
#pragma omp for schedule(static)
    for (int64_t c = 0; c < part.columns; c += kSide) pack_b(part, c, b_ + c / kSide * size);

    // Runs of panels, because a thread asks for the next one's memory early; cut across, too, where
    // there are few.
    const int64_t panels = (part.rows + kSide - 1) / kSide,
                  blocks = (part.columns + kSide - 1) / kSide;
    const int64_t run = larger(1, smaller(4, panels / (4 * threads)));
    const int64_t runs = (panels + run - 1) / run;
    const int64_t cuts = smaller(larger(1, 2 * threads / runs), blocks);
    uint32_t* const a = a_ + omp_get_thread_num() * kSide * kInner / 2;
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < runs * cuts; ++task) {
      const int64_t begin = task / cuts * run, end = smaller(begin + run, panels);
      const int64_t first = task % cuts * blocks / cuts, past = (task % cuts + 1) * blocks / cuts;
      for (int64_t panel = begin; panel < end; ++panel) {
        const int64_t row = part.row + panel * kSide, next = row + kSide;
        p_.a.pack(row, smaller(kSide, p_.rows - row), part.k, part.depth, a);
        const int64_t lines = panel + 1 < end && p_.rows - next >= kSide ? part.depth : 0;
        for (int64_t block = first; block < past; ++block) {
          for (int64_t i = (block - first) * lines / (past - first);
               i < (block - first + 1) * lines / (past - first); ++i)
            p_.a.prefetch(next, part.k, i);
          multiply(part, row, part.column + block * kSide, a, b_ + block * size);
        }
      }
    }
  }

  void pack_b(const Part& part, int64_t column, uint32_t* to) const {
    for (int64_t t = 0; t < part.depth; t += kSide, to += kStep) {
      __m512i words[2][kUnitRows];
      pair_rows(p_.b + (part.k + t) * p_.columns + part.column + column, p_.columns, part.depth - t,
                part.columns - column, words);
      for (int64_t i = 0; i < kSide; ++i)
        _mm512_store_si512(to + i * kUnitRows, words[i / kUnitRows][i % kUnitRows]);
    }
  }

  /// Up to 32 × 32 of C.
  void multiply(const Part& part, int64_t row, int64_t column, const uint32_t* a,
                const uint32_t* b) {
    alignas(64) float local[kSide * kSide];
    const Sums block = {local, kSide};
    const int64_t rows = smaller(kSide, p_.rows - row),
                  columns = smaller(kSide, p_.columns - column);
    if (!p_.c_is_f32) {
      const Sums kept = {sums_ + (row - part.row) * kSumColumns + column - part.column,
                         kSumColumns};
      multiply_panels<Unit>(a, b, part.depth, part.first ? Sums{} : kept, part.last ? block : kept);
      if (part.last) write(local, row, rows, column, columns);
      return;
    }
    const Sums c = {static_cast<float*>(p_.c) + row * p_.columns + column, p_.columns};
    const bool add = p_.add || !part.first;
    if (rows == kSide && columns == kSide) {
      if (add && column + 2 * kSide <= p_.columns) prefetch_next(c);
      return multiply_panels<Unit>(a, b, part.depth, add ? c : Sums{}, c);
    }
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j)
        local[i * kSide + j] = add ? c.data[i * c.stride + j] : 0;
    multiply_panels<Unit>(a, b, part.depth, block, block);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) c.data[i * c.stride + j] = local[i * kSide + j];
  }

  /// C comes from memory, and the next block of it while this one is multiplied.
  static void prefetch_next(const Sums& c) {
    for (int64_t i = 0; i < kSide; ++i)
      for (int64_t line = 0; line < kSide; line += kUnitRows)
        _mm_prefetch(reinterpret_cast<const char*>(c.data + i * c.stride + kSide + line),
                     _MM_HINT_T0);
  }

  /// C's block from its finished sums.
  void write(const float* sums, int64_t row, int64_t rows, int64_t column, int64_t columns) const {
    for (int64_t i = 0; i < rows; ++i) {
      BFloat16* const to = static_cast<BFloat16*>(p_.c) + (row + i) * p_.columns + column;
      for_each_vec(columns, [&](int64_t j, int count) MILES_INLINE_LAMBDA {
        Vec x = load(sums + i * kSide + j);
        if (p_.add) x += load(to + j, count);
        store(to + j, x, count);
      });
    }
  }

  const ProductArgs& p_;
  uint32_t* const b_;  // [panels of columns, steps, 2, 16 pairs of k, 16 columns]
  float* const sums_;  // [kSumRows, kSumColumns]: C's sums so far, when C is bf16
  uint32_t* const a_;  // [threads, a panel]
};

bool on_unit(const Tensor& dy) {
  return dy.dtype() == DType::bf16 && (emulate_amx() || use_amx(kInner));
}

void multiply(Exec& exec, const ProductArgs& args) {
  if (emulate_amx()) return Product<EmulatedUnit>(exec, args).run();
  Product<AmxUnit>(exec, args).run();
}

}  // namespace
#endif

void linear_backward_input(Exec& exec, const LinearBackwardInputArgs& args) {
#if defined(__AVX512F__)
  const int64_t n = extent(args.w, 0), k = extent(args.w, 1);
  if (on_unit(args.dy))
    return multiply(exec, {.a = {elements<BFloat16>(args.dy), n, false},
                           .b = elements<BFloat16>(args.w),
                           .c = args.dx.data(),
                           .c_is_f32 = false,
                           .add = args.accumulate == Accumulate::yes,
                           .rows = extent(args.dy, 0),
                           .columns = k,
                           .inner = n});
#endif
  cpu::linear_backward_input(exec, args);
}

void linear_backward_weight(Exec& exec, const LinearBackwardWeightArgs& args) {
#if defined(__AVX512F__)
  const int64_t n = extent(args.dw, 0), k = extent(args.dw, 1);
  if (on_unit(args.dy))
    return multiply(exec, {.a = {elements<BFloat16>(args.dy), n, true},
                           .b = elements<BFloat16>(args.x),
                           .c = args.dw.data(),
                           .c_is_f32 = true,
                           .add = args.accumulate == Accumulate::yes,
                           .rows = n,
                           .columns = k,
                           .inner = extent(args.x, 0)});
#endif
  cpu::linear_backward_weight(exec, args);
}

}  // namespace miles::MILES_ISA
