#include <algorithm>

#include "ops/cuda/backend.h"
#include "ops/cuda/chained_launch.cuh"
#include "ops/cuda/eight.cuh"
#include "ops/cuda/sample_filter.cuh"
#include "ops/sample.h"

namespace miles::cuda {
namespace {

constexpr int kTile = 1024;            // logits whose probabilities are summed together, by a warp
constexpr int kMaxTiles = 1024;        // ops/sample.cpp: vocabularies are at most 2^20
constexpr float kGreedyBelow = 1e-6F;  // temperatures that mean "the largest"
constexpr int32_t kNoToken = -1;
constexpr float kLowest = -INFINITY;
static_assert(kMaxTiles <= kSampleThreads && kTile == kSampleThreads);

enum class Method : int32_t { largest, unfiltered, filtered };

/// A SampleRow, as a block needs it.
struct Settings {
  Method method;
  float inverse_temperature;
  float uniform;  // in (0, 1)
  int32_t top_k;  // below 1: all
  float top_p;    // from 1: all
  float min_weight;
};

__device__ Settings settings_of(const SampleRow& row) {
  const bool filtered = row.top_k > 0 || row.top_p < 1 || row.min_p > 0;
  const bool largest = row.temperature < kGreedyBelow || row.top_k == 1;
  return {.method = largest    ? Method::largest
                    : filtered ? Method::filtered
                               : Method::unfiltered,
          .inverse_temperature = 1.0F / row.temperature,
          .uniform = row.uniform,
          .top_k = row.top_k,
          .top_p = row.top_p,
          .min_weight = row.min_p < 1 ? row.min_p : 1.0F};  // the likeliest always stays
}

struct Draws {
  const float* logits;  // [rows, vocab]
  const SampleRow* rows;
  Candidate* lists;  // [rows, capacity]
  int32_t* tokens;
  int64_t vocab, capacity;
};

/// Of each tile: the largest logit, NaNs aside, and the weights relative to that.
struct Tiles {
  float max[kMaxTiles], sum[kMaxTiles];
};

/// A warp per tile.
template <bool kWide>
__device__ void read_tiles(const SampledRow& row, Tiles& tiles) {
  const int lane = threadIdx.x % 32, count = (row.vocab + kTile - 1) / kTile;
  for (int t = threadIdx.x / 32; t < count; t += kSampleWarps) {
    Eight x[kTile / 256];
    SampledRow tile = row;
    tile.max = kLowest;
#pragma unroll
    for (int k = 0; k < kTile / 256; ++k) {
      const int at = t * kTile + 8 * (32 * k + lane);
      x[k] = load<kWide>(row.logits + at, row.vocab - at, kLowest);
    }
#pragma unroll
    for (int k = 0; k < kTile / 256; ++k)
#pragma unroll
      for (int e = 0; e < 8; ++e) tile.max = fmaxf(tile.max, x[k].at[e]);
    tile.max = warp_max(tile.max);
    float sum = 0;
#pragma unroll
    for (int k = 0; k < kTile / 256; ++k)
#pragma unroll
      for (int e = 0; e < 8; ++e) sum += tile.weight(x[k].at[e]);
    sum = warp_sum(sum);
    if (lane != 0) continue;
    tiles.max[t] = tile.max;
    tiles.sum[t] = sum;
  }
  __syncthreads();
}

/// A thread's tile.
struct MyTile {
  float max;     // of its logits; −∞ without a tile
  double share;  // of the row's unnormalised probabilities
};

__device__ int32_t first_largest(const SampledRow& row, const MyTile& mine) {
  const int me = static_cast<int>(threadIdx.x);
  const int tile = block_min(mine.max == row.max ? me : kNobody);
  const int id = tile * kTile + me;
  return block_min(id < row.vocab && row.logits[id] == row.max ? id : kNobody);
}

/// Inverse of the cumulative distribution in id order; no filter, so no order is needed.
__device__ int32_t draw_unfiltered(const SampledRow& row, const MyTile& mine, float u) {
  const Scan tiles = block_scan(mine.share);
  const Pick tile = block_pick(mine.share, tiles, static_cast<double>(u) * tiles.total);
  const int id = tile.thread * kTile + static_cast<int>(threadIdx.x);
  const double share = id < row.vocab ? row.weight(row.logits[id]) : 0.0F;
  return tile.thread * kTile + block_pick(share, block_scan(share), tile.left).thread;
}

/// A weight that at least k tokens have; 0 when tiles are too few to tell. The k-th largest of the
/// tiles' own largest is one.
__device__ float weight_of_k(const SampledRow& row, const MyTile& mine, int k, Tiles& tiles) {
  __shared__ float result;
  const int me = static_cast<int>(threadIdx.x), count = (row.vocab + kTile - 1) / kTile;
  if (k < 1 || k > count) return 0;
  const float weight = row.weight(mine.max);
  __syncthreads();  // the sums have been read
  if (me < count) tiles.sum[me] = weight;
  __syncthreads();
  int before = 0;
  if (me < count)
    for (int t = 0; t < count; ++t)
      before += tiles.sum[t] > weight || (tiles.sum[t] == weight && t < me);
  if (me < count && before == k - 1) result = weight;
  __syncthreads();
  return result;
}

/// Draws among the tokens that pass the filters, which are the first ones of their order.
__device__ int32_t draw_filtered(Candidates& candidates, const Settings& s, float low_weight,
                                 double total) {
  Key low = max(1U, __float_as_uint(fmaxf(low_weight, 0.0F)));
  const Mass all = candidates.keep(low);
  const double mass = ceil(fmax(static_cast<double>(s.top_p), 0.0) * total * 0x1p43);
  const Goal goal = {s.top_p < 1 ? max(1ULL, __double2ull_rn(mass)) : ~0ULL,
                     s.top_k > 0 ? static_cast<uint32_t>(s.top_k) : ~0U};
  unsigned long long kept = all.weight;
  if (goal.reached(all)) {
    const Place last = find(candidates, goal, low);
    const unsigned long long one = weight_of(last.key);
    unsigned long long equals =
        goal.count - last.above.count;  // that are kept, with the last's key
    if (one > 0) equals = min(equals, (goal.weight - last.above.weight - 1) / one + 1);
    kept = last.above.weight + equals * one;
    low = last.key;
  }
  const auto passed =
      static_cast<unsigned long long>(static_cast<double>(s.uniform) * static_cast<double>(kept));
  const Goal drawn = {passed + 1, ~0U};
  const Place place = find(candidates, drawn, low);
  return candidates.nth_id(place.key,
                           (drawn.weight - place.above.weight - 1) / weight_of(place.key) + 1);
}

/// A weight below which no filter keeps a token. Of the tokens below the mean weight of what top-p
/// leaves out, not even all together would fill that; the margin is for the rounding of `total`.
__device__ float lowest_weight(const SampledRow& row, const Settings& s, double total) {
  constexpr double kMargin = 1e-5;
  const double left_out = 1.0 - fmax(static_cast<double>(s.top_p), 0.0) - kMargin;
  const double outside_top_p = s.top_p < 1 && left_out > 0 ? left_out * total / row.vocab : 0;
  return fmaxf(s.min_weight, static_cast<float>(outside_top_p));
}

template <bool kWide>
__device__ int32_t draw(const Draws& d, SampledRow row, const Settings& s) {
  __shared__ Tiles tiles;
  __shared__ float scratch[kSampleWarps];
  read_tiles<kWide>(row, tiles);
  const int me = static_cast<int>(threadIdx.x), count = (row.vocab + kTile - 1) / kTile;
  MyTile mine = {me < count ? tiles.max[me] : kLowest, 0};
  row.max = block_max<kSampleThreads>(mine.max, scratch);
  if (row.max == kLowest) return kNoToken;
  if (s.method == Method::largest || row.max == INFINITY) return first_largest(row, mine);
  if (me < count) mine.share = static_cast<double>(tiles.sum[me] * row.weight(mine.max));
  if (s.method == Method::unfiltered) return draw_unfiltered(row, mine, s.uniform);
  const double total = block_scan(mine.share).total;
  const float low = fmaxf(lowest_weight(row, s, total), weight_of_k(row, mine, s.top_k, tiles));
  Candidates candidates(row, d.lists + blockIdx.x * d.capacity, static_cast<uint32_t>(d.capacity));
  return draw_filtered(candidates, s, low, total);
}

/// A block per row.
template <bool kWide>
__global__ void __launch_bounds__(kSampleThreads) sample_kernel(const Draws d) {
  wait_for_earlier_kernels();
  const Settings s = settings_of(d.rows[blockIdx.x]);
  const int32_t token = draw<kWide>(d,
                                    {.logits = d.logits + blockIdx.x * d.vocab,
                                     .vocab = static_cast<int>(d.vocab),
                                     .max = 0,
                                     .inverse_temperature = s.inverse_temperature},
                                    s);
  if (threadIdx.x == 0) d.tokens[blockIdx.x] = token;
}

constexpr int64_t kWindow =
    1 << 16;  // rows of one launch: the workspace holds a list of candidates for each

}  // namespace

void sample(Exec& exec, const SampleArgs& args) {
  const int64_t rows = args.logits.dim(0), vocab = args.logits.dim(1);
  for (int64_t first = 0; first < rows; first += kWindow) {
    const int64_t count = std::min(kWindow, rows - first);
    const int64_t room = static_cast<int64_t>(exec.workspace.size() / sizeof(Candidate)) / count;
    const float* const logits = pointer<float>(args.logits) + first * vocab;
    const Draws draws = {.logits = logits,
                         .rows = pointer<const SampleRow>(args.rows) + first,
                         .lists = reinterpret_cast<Candidate*>(exec.workspace.data()),
                         .tokens = pointer<int32_t>(args.tokens) + first,
                         .vocab = vocab,
                         .capacity = std::min(vocab, room)};
    with_width(is_wide(vocab, logits), [&](auto wide) {
      launch_chained<sample_kernel<wide()>>(exec, {static_cast<unsigned>(count), kSampleThreads},
                                            "sample", draws);
    });
  }
}

}  // namespace miles::cuda
