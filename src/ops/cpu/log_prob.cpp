#include "ops/log_prob.h"

#include "ops/cpu/row_loops.h"
#include "ops/cpu/vexp.h"

namespace miles::MILES_ISA {
namespace {

constexpr int64_t kTile = 1024;    // logits of one partial sum
constexpr int64_t kManyRows = 64;  // enough for all threads

/// Partial results of one tile of one row.
struct TileSums {
  float exp_sum;       // Σ e^(z − max)
  float weighted_sum;  // Σ e^(z − max)·(z − max)
};

/// Some of a row's logits.
struct Tile {
  const float* logits;  // [n]
  int64_t n;
  float scale;  // z = logits·scale
};

/// The largest z, NaNs aside; −∞ when there is none.
float tile_max(const Tile& tile) {
  const Vec lowest = splat(-__builtin_inff());
  PartialSums maxima;
  for (Vec& v : maxima.v) v = lowest;
  for_each_sum_vec(tile.n, [&](int v, int64_t i, int count) MILES_INLINE_LAMBDA {
    Vec z = load(tile.logits + i, count) * tile.scale;
    if (count < kWidth)
      for (int l = count; l < kWidth; ++l) z[l] = -__builtin_inff();
    maxima.v[v] = vmax(z, maxima.v[v]);
  });
  return max_of(maxima);
}

TileSums tile_sums(const Tile& tile, float shift) {
  PartialSums sums = {}, weighted = {};
  for_each_sum_vec(tile.n, [&](int v, int64_t i, int count) MILES_INLINE_LAMBDA {
    const Vec z = load(tile.logits + i, count) * tile.scale - shift;
    Vec e = vexp(z);
    if (count < kWidth)
      for (int l = count; l < kWidth; ++l) e[l] = 0;
    sums.v[v] += e;
    weighted.v[v] += e == 0.0F ? Vec{} : e * z;  // 0·(−∞) is 0 here
  });
  return {sum_of(sums), sum_of(weighted)};
}

/// Rows [first, first + rows) of the forward; scratch holds `tiles` maxima and sums a row.
struct RowBlock {
  int64_t first, rows, tiles;
  float* max;      // [rows, tiles]
  TileSums* sums;  // [rows, tiles]
};

/// The largest of a row's tiles; 0 when all are −∞, so that nothing is shifted by an infinity.
float row_shift(const float* max, int64_t tiles) {
  float m = -__builtin_inff();
  for (int64_t t = 0; t < tiles; ++t) m = max[t] > m ? max[t] : m;
  return m == -__builtin_inff() ? 0.0F : m;
}

void finish_row(const LogProbArgs& a, const RowBlock& block, int64_t r) {
  const int64_t n = block.first + r, vocab = extent(a.logits, 1);
  const float shift = row_shift(block.max + r * block.tiles, block.tiles);
  float sum = 0, weighted = 0;
  for (int64_t t = 0; t < block.tiles; ++t) {
    sum += block.sums[r * block.tiles + t].exp_sum;
    weighted += block.sums[r * block.tiles + t].weighted_sum;
  }
  const float log_sum = __builtin_logf(sum);
  const int64_t target = elements<int32_t>(a.targets)[n];
  const float scale = elements<float>(a.inverse_temperature)[n];
  elements<float>(a.log_prob)[n] =
      target >= 0 && target < vocab
          ? elements<float>(a.logits)[n * vocab + target] * scale - shift - log_sum
          : __builtin_nanf("");
  if (a.lse.data() != nullptr) elements<float>(a.lse)[n] = shift + log_sum;
  if (a.entropy.data() != nullptr) elements<float>(a.entropy)[n] = log_sum - weighted / sum;
}

void forward_block(const LogProbArgs& a, const RowBlock& block) {
  const int64_t vocab = extent(a.logits, 1), tiles = block.tiles;
  const float* const logits = elements<float>(a.logits) + block.first * vocab;
  const float* const scales = elements<float>(a.inverse_temperature) + block.first;
  const auto tile = [=](int64_t i) -> Tile {
    const int64_t r = i / tiles, begin = i % tiles * kTile;
    return {logits + r * vocab + begin, smaller(kTile, vocab - begin), scales[r]};
  };
  if (block.rows >= kManyRows) {  // one after another, so that a row is read from memory once
#pragma omp parallel for schedule(static) if (block.rows * vocab > kSerialElements / 2)
    for (int64_t r = 0; r < block.rows; ++r) {
      const int64_t begin = r * tiles, end = begin + tiles;
      for (int64_t i = begin; i < end; ++i) block.max[i] = tile_max(tile(i));
      const float shift = row_shift(block.max + begin, tiles);
      for (int64_t i = begin; i < end; ++i) block.sums[i] = tile_sums(tile(i), shift);
      finish_row(a, block, r);
    }
    return;
  }
  // Over tiles rather than rows, so that a single row of a large vocabulary keeps all threads busy.
#pragma omp parallel if (block.rows * vocab > kSerialElements / 2)
  {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < block.rows * tiles; ++i) block.max[i] = tile_max(tile(i));
#pragma omp for schedule(static)
    for (int64_t i = 0; i < block.rows * tiles; ++i)
      block.sums[i] = tile_sums(tile(i), row_shift(block.max + i / tiles * tiles, tiles));
#pragma omp for schedule(static)
    for (int64_t r = 0; r < block.rows; ++r) finish_row(a, block, r);
  }
}

/// One tile of one row of the backward.
struct TileGradient {
  const float* logits;  // [n]
  int64_t n;            // logits in the tile
  int32_t target;       // the row's target, counted from the tile's begin; may be outside
  float scale;          // inverse temperature
  float lse, entropy, d_log_prob, d_entropy;
};

template <class T>
void tile_gradient(const TileGradient& g, T* dlogits) {
  VecI index;
  for (int l = 0; l < kWidth; ++l) index[l] = l;
  index -= g.target;
  for_each_vec(g.n, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
    const Vec log_p = load(g.logits + i, count) * g.scale - g.lse;
    const Vec p = vexp(log_p);
    const Vec one_hot = index + static_cast<int32_t>(i) == 0 ? splat(1) : Vec{};
    const Vec from_entropy = p == 0.0F ? Vec{} : p * (log_p + g.entropy);
    const Vec d = (one_hot - p) * g.d_log_prob - from_entropy * g.d_entropy;
    store(dlogits + i, d * g.scale, count);
  });
}

template <class T>
void backward(const LogProbBackwardArgs& a) {
  const int64_t rows = extent(a.logits, 0), vocab = extent(a.logits, 1);
  const int64_t tiles = (vocab + kTile - 1) / kTile;
#pragma omp parallel for schedule(static) if (rows * vocab > kSerialElements / 2)
  for (int64_t i = 0; i < rows * tiles; ++i) {
    const int64_t n = i / tiles, begin = i % tiles * kTile, offset = n * vocab + begin;
    tile_gradient<T>({.logits = elements<float>(a.logits) + offset,
                      .n = smaller(kTile, vocab - begin),
                      .target = elements<int32_t>(a.targets)[n] - static_cast<int32_t>(begin),
                      .scale = elements<float>(a.inverse_temperature)[n],
                      .lse = elements<float>(a.lse)[n],
                      .entropy = elements<float>(a.entropy)[n],
                      .d_log_prob = elements<float>(a.d_log_prob)[n],
                      .d_entropy = elements<float>(a.d_entropy)[n]},
                     elements<T>(a.dlogits) + offset);
  }
}

}  // namespace

void log_prob(Exec& exec, const LogProbArgs& args) {
  const int64_t rows = extent(args.logits, 0), vocab = extent(args.logits, 1);
  const int64_t tiles = (vocab + kTile - 1) / kTile;
  const int64_t row_bytes = tiles * static_cast<int64_t>(sizeof(float) + sizeof(TileSums));
  const int64_t room = static_cast<int64_t>(exec.workspace.size()) / row_bytes;
  for (int64_t first = 0; first < rows; first += room) {
    RowBlock block = {first, smaller(room, rows - first), tiles, nullptr, nullptr};
    block.max = reinterpret_cast<float*>(exec.workspace.data());
    block.sums = reinterpret_cast<TileSums*>(block.max + block.rows * tiles);
    forward_block(args, block);
  }
}

void log_prob_backward(Exec&, const LogProbBackwardArgs& args) {
  if (args.dlogits.dtype() == DType::bf16) return backward<BFloat16>(args);
  backward<float>(args);
}

}  // namespace miles::MILES_ISA
