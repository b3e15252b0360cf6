// bf16 y = x · wᵀ on AMX tiles. The product is formed transposed, C[n, m] = Σ_k w[n, k] · x[m, k],
// because then the weights are the left operand, which TDPBF16PS reads as they lie: they stream
// from memory once, unpacked, and only the (few) rows of x are rearranged. An element is one chain
// over pairs of k in ascending order, in its own place of a tile, so its bits depend on nothing
// else.
//
// Why not oneDNN: the f32 sums of its AMX products (2.6.3) change bits with M, at M = 1 and 2, from
// M = 128 or 256 on, and nearly everywhere at K >= 3072, since it chooses how to cut K by M.
// Rounding to bf16 hides most, not all.
#include <omp.h>

#include <algorithm>

#include "base/error.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/transpose16.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MILES_AMX [[gnu::target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl")]]

namespace miles {
namespace {

constexpr int kTile = 16;                  // rows of a tile; also 32-bit columns
constexpr int kTileK = 2 * kTile;          // k's in a tile row
constexpr int kPanel = 2 * kTile;          // rows of w, or of x, that are multiplied at once
constexpr int64_t kPackedBytes = 1 << 20;  // of x, at once: half an L2
constexpr int64_t kMaxInputs = 65536;      // a panel of x is then 4 MiB
static_assert(kMaxInputs * kPanel * 2 <= kWorkspaceBytes);
constexpr int64_t kMinParallelWork = 1 << 20;  // multiply-adds; below, waking threads costs more

struct Operands {
  const BFloat16* x;  // [m, k]
  const BFloat16* w;  // [n, k]
  void* y;            // [m, n]
  bool y_is_f32;      // else bf16
  int64_t m, n, k;    // extents
  int64_t k_tiles;    // k / kTileK, rounded up
  uint32_t* packed;   // [groups of 16 rows, k_tiles, 16 pairs of k, 16 rows]
};

/// LDTILECFG's operand, palette 1.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

/// Packs the 16 rows of x from `row` on; rows and k's beyond the matrix are zeros.
MILES_AMX void pack_group(const Operands& o, int64_t row, uint32_t* packed) {
  const int64_t rows = std::min<int64_t>(kTile, o.m - row);
  for (int64_t t = 0; t < o.k_tiles; ++t) {
    const int64_t ks = std::min<int64_t>(kTileK, o.k - t * kTileK);
    const auto mask = static_cast<__mmask32>((uint64_t{1} << ks) - 1);
    __m512i r[kTile];
    for (int i = 0; i < kTile; ++i)
      r[i] = i < rows ? _mm512_maskz_loadu_epi16(mask, o.x + (row + i) * o.k + t * kTileK)
                      : _mm512_setzero_si512();
    transpose16(r);
    for (int i = 0; i < kTile; ++i) _mm512_store_si512(packed + (t * kTile + i) * kTile, r[i]);
  }
}

/// To nearest, ties to even; NaN stays NaN.
MILES_AMX inline __m256i to_bf16(__m512 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i rounded = _mm512_mask_blend_epi32(nan, sum, quiet);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

/// y[row.., column..] = a tile's transpose, `rows` × `columns` of it.
MILES_AMX void write_tile(const Operands& o, const float* tile, int64_t row, int64_t rows,
                          int64_t column, int64_t columns) {
  __m512i r[kTile];
  for (int i = 0; i < kTile; ++i) r[i] = _mm512_load_si512(tile + i * kTile);
  transpose16(r);
  const auto mask = static_cast<__mmask16>((1U << columns) - 1);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t at = (row + i) * o.n + column;
    const __m512 v = _mm512_castsi512_ps(r[i]);
    if (o.y_is_f32)
      _mm512_mask_storeu_ps(static_cast<float*>(o.y) + at, mask, v);
    else
      _mm256_mask_storeu_epi16(static_cast<BFloat16*>(o.y) + at, mask, to_bf16(v));
  }
}

/// One step of k: A = one or two tiles of w, B = one or two of packed x. Tiles 0–3 are C[a, b] at
/// 2a + b.
template <int kA, int kB>
MILES_AMX inline void multiply(const BFloat16* w, int64_t w_bytes, const uint32_t* b0,
                               const uint32_t* b1) {
  _tile_loadd(4, w, w_bytes);
  if constexpr (kA == 2)
    _tile_loadd(5, reinterpret_cast<const std::byte*>(w) + kTile * w_bytes, w_bytes);
  _tile_loadd(6, b0, 64);
  if constexpr (kB == 2) _tile_loadd(7, b1, 64);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (kA == 2) _tile_dpbf16ps(2, 5, 6);
  if constexpr (kB == 2) _tile_dpbf16ps(1, 4, 7);
  if constexpr (kA == 2 && kB == 2) _tile_dpbf16ps(3, 5, 7);
}

/// Up to 32 rows of w against all packed rows of x.
class Panel {
 public:
  MILES_AMX Panel(const Operands& o, int64_t column)
      : o_(o), column_(column), columns_(std::min<int64_t>(kPanel, o.n - column)) {
    const int64_t first = std::min<int64_t>(kTile, columns_), second = columns_ - first;
    TileConfig config;
    for (int t = 0; t < 8; ++t) config.row_bytes[t] = 64;
    for (int t : {0, 1, 4}) config.rows[t] = static_cast<uint8_t>(first);
    for (int t : {2, 3, 5}) config.rows[t] = static_cast<uint8_t>(second > 0 ? second : kTile);
    for (int t : {6, 7}) config.rows[t] = kTile;
    _tile_loadconfig(&config);
    const int64_t whole = o.k / kTileK * kTileK;
    if (whole == o.k) return;
    for (int64_t i = 0; i < columns_; ++i)
      std::copy_n(o.w + (column + i) * o.k + whole, o.k - whole, last_ + i * kTileK);
  }

  /// Rows [row, row + rows) of y, rows <= 32, whose packed groups begin at `packed`.
  MILES_AMX void run(int64_t row, int64_t rows, const uint32_t* packed) {
    const bool wide = columns_ > kTile, tall = rows > kTile;
    if (wide && tall) return run<2, 2>(row, rows, packed);
    if (wide) return run<2, 1>(row, rows, packed);
    if (tall) return run<1, 2>(row, rows, packed);
    run<1, 1>(row, rows, packed);
  }

 private:
  template <int kA, int kB>
  MILES_AMX void run(int64_t row, int64_t rows, const uint32_t* packed) {
    asm volatile("" ::: "memory");  // tile loads do not tell the compiler that they read
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    const uint32_t* b0 = packed;
    const uint32_t* b1 = packed + o_.k_tiles * kTile * kTile;
    const int64_t whole = o_.k / kTileK;
    const BFloat16* w = o_.w + column_ * o_.k;
    for (int64_t t = 0; t < whole; ++t)
      multiply<kA, kB>(w + t * kTileK, 2 * o_.k, b0 + t * kTile * kTile, b1 + t * kTile * kTile);
    if (whole < o_.k_tiles)
      multiply<kA, kB>(last_, 2 * kTileK, b0 + whole * kTile * kTile, b1 + whole * kTile * kTile);

    alignas(64) float sums[4][kTile * kTile];
    _tile_stored(0, sums[0], 64);
    if constexpr (kB == 2) _tile_stored(1, sums[1], 64);
    if constexpr (kA == 2) _tile_stored(2, sums[2], 64);
    if constexpr (kA == 2 && kB == 2) _tile_stored(3, sums[3], 64);
    for (int a = 0; a < kA; ++a)
      for (int b = 0; b < kB; ++b)
        write_tile(o_, sums[2 * a + b], row + b * kTile, std::min<int64_t>(kTile, rows - b * kTile),
                   column_ + a * kTile, std::min<int64_t>(kTile, columns_ - a * kTile));
  }

  const Operands& o_;
  int64_t column_, columns_;
  alignas(
      64) BFloat16 last_[kPanel * kTileK] = {};  // the k's after the last whole tile, then zeros
};

MILES_AMX void release_tiles() {
  _tile_release();
}

bool processor_has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  const bool bf16 = (d >> 22 & 1) != 0, tile = (d >> 24 & 1) != 0;
  if (!bf16 || !tile || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl"))
    return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl(2), ARCH_REQ_XCOMP_PERM
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool use_amx(int64_t inputs) {
  static const bool has = processor_has_amx();
  return has && inputs <= kMaxInputs && bf16_path() == Bf16Path::native;
}

void linear_amx(Exec& exec, const LinearArgs& args) {
  Operands o{.x = args.x.as<BFloat16>(),
             .w = args.w.as<BFloat16>(),
             .y = args.y.data(),
             .y_is_f32 = args.y.dtype() == DType::f32,
             .m = args.x.dim(0),
             .n = args.w.dim(0),
             .k = args.x.dim(1),
             .k_tiles = (args.x.dim(1) + kTileK - 1) / kTileK,
             .packed = reinterpret_cast<uint32_t*>(exec.workspace.data())};
  const int64_t row_bytes = o.k_tiles * kTileK * 2;
  const int64_t panels = std::max<int64_t>(1, kPackedBytes / (row_bytes * kPanel));
  const int64_t block = panels * kPanel;  // rows of x packed at once
  const bool parallel = o.m * o.n * o.k >= kMinParallelWork;
#pragma omp parallel if (parallel)
  {
    for (int64_t begin = 0; begin < o.m; begin += block) {
      const int64_t rows = std::min(block, o.m - begin);
#pragma omp for schedule(static)
      for (int64_t r = 0; r < rows; r += kTile)
        pack_group(o, begin + r, o.packed + r * o.k_tiles * kTile);
#pragma omp for schedule(dynamic)
      for (int64_t column = 0; column < o.n; column += kPanel) {
        Panel panel(o, column);
        for (int64_t r = 0; r < rows; r += kPanel)
          panel.run(begin + r, std::min<int64_t>(kPanel, rows - r),
                    o.packed + r * o.k_tiles * kTile);
      }
    }
    release_tiles();
  }
}

}  // namespace miles

#else

namespace miles {

bool use_amx(int64_t) {
  return false;
}
void linear_amx(Exec&, const LinearArgs&) {
  MILES_CHECK(false, "AMX on another architecture");
}

}  // namespace miles

#endif
