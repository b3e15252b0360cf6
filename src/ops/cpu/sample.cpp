#include "ops/sample.h"

#include <omp.h>

#include "ops/cpu/row_loops.h"
#include "ops/cpu/vexp.h"

namespace miles::MILES_ISA {
namespace {

constexpr int64_t kTile = 1024;         // logits whose probabilities are summed together
constexpr float kGreedyBelow = 1e-6F;   // temperatures that mean "the largest"
constexpr int64_t kMaxVocab = 1 << 20;  // checked in ops/sample.cpp
constexpr int32_t kNoToken = -1;

/// A token that may be drawn.
struct Candidate {
  float weight;  // e^((logit − max) / temperature): 1 for the likeliest
  int32_t id;
};

/// The order of the filters: likelier first, then lower id.
MILES_INLINE bool before(Candidate a, Candidate b) {
  return a.weight > b.weight || (a.weight == b.weight && a.id < b.id);
}

/// The largest logit, NaNs aside; −∞ when there is none.
float largest(const float* logits, int64_t n) {
  PartialSums maxima;
  for (Vec& v : maxima.v) v = splat(-__builtin_inff());
  for_each_sum_vec(n, [&](int v, int64_t i, int count) MILES_INLINE_LAMBDA {
    Vec x = load(logits + i, count);
    if (count < kWidth)
      for (int l = count; l < kWidth; ++l) x[l] = -__builtin_inff();
    maxima.v[v] = vmax(x, maxima.v[v]);
  });
  return max_of(maxima);
}

int32_t first_equal(const float* logits, int64_t n, float value) {
  for (int64_t i = 0; i < n; ++i)
    if (logits[i] == value) return static_cast<int32_t>(i);
  return kNoToken;
}

/// A row's unnormalised probabilities.
struct Distribution {
  const float* logits;  // [vocab]
  int64_t vocab;
  float max;  // of the logits
  float inverse_temperature;

  int64_t tile_size(int64_t begin) const { return smaller(kTile, vocab - begin); }
  /// e^((logit − max) / temperature); 0 for NaN.
  MILES_INLINE Vec weights(int64_t i, int count) const {
    const Vec w = vexp((load(logits + i, count) - max) * inverse_temperature);
    return w == w ? w : Vec{};
  }
  float tile_sum(int64_t begin) const {
    return sum_over(tile_size(begin), [&](int64_t i, int count) MILES_INLINE_LAMBDA {
      Vec w = weights(begin + i, count);
      if (count < kWidth)
        for (int l = count; l < kWidth; ++l) w[l] = 0;
      return w;
    });
  }
  void write_tile(int64_t begin, float* to) const {
    for_each_vec(tile_size(begin), [&](int64_t i, int count) MILES_INLINE_LAMBDA {
      store(to + i, weights(begin + i, count), count);
    });
  }
};

/// The first token of the tile at which the running sum passes `threshold`; the tile's last
/// possible one when rounding keeps it below.
int32_t draw_in_tile(const Distribution& d, int64_t begin, double threshold) {
  float tile[kTile];
  d.write_tile(begin, tile);
  double sum = 0;
  int32_t last = kNoToken;
  for (int64_t i = 0; i < d.tile_size(begin); ++i) {
    if (tile[i] == 0) continue;
    last = static_cast<int32_t>(begin + i);
    sum += static_cast<double>(tile[i]);
    if (sum > threshold) break;
  }
  return last;
}

/// Inverse of the cumulative distribution in id order; no filter, so no order is needed.
int32_t draw_unfiltered(const Distribution& d, float u) {
  float sums[kMaxVocab / kTile];
  double total = 0;
  for (int64_t t = 0; t * kTile < d.vocab; ++t) {
    sums[t] = d.tile_sum(t * kTile);
    total += static_cast<double>(sums[t]);
  }
  double left = static_cast<double>(u) * total;
  int64_t chosen = 0;  // the last tile that holds anything, should rounding pass them all
  for (int64_t t = 0; t * kTile < d.vocab; ++t) {
    if (sums[t] == 0) continue;
    chosen = t;
    if (static_cast<double>(sums[t]) > left) break;
    left -= static_cast<double>(sums[t]);
  }
  return draw_in_tile(d, chosen * kTile, left);
}

/// A binary heap with the likeliest candidate at its root.
struct Heap {
  Candidate* at;  // [size]
  int64_t size;

  void sink(int64_t i) {
    const Candidate x = at[i];
    for (int64_t child = 2 * i + 1; child < size; child = 2 * i + 1) {
      if (child + 1 < size && before(at[child + 1], at[child])) ++child;
      if (!before(at[child], x)) break;
      at[i] = at[child];
      i = child;
    }
    at[i] = x;
  }
  void build() {
    for (int64_t i = size / 2 - 1; i >= 0; --i) sink(i);
  }
  /// Moves the root to at[size − 1] and forgets it.
  Candidate pop() {
    const Candidate top = at[0];
    at[0] = at[--size];
    at[size] = top;
    if (size > 0) sink(0);
    return top;
  }
};

/// What a filtered draw is made of.
struct FilteredDraw {
  const SampleRow& row;
  Candidate* candidates;  // [vocab]
  float u;                // uniform in (0, 1)
};

/// Collects what passes min-p and returns the mass of all tokens: top-p is a share of that.
double collect(const Distribution& d, float min_p, Heap& heap) {
  const float floor = min_p < 1 ? min_p : 1.0F;  // the likeliest always stays
  double total = 0;
  float tile[kTile];
  for (int64_t begin = 0; begin < d.vocab; begin += kTile) {
    d.write_tile(begin, tile);
    for (int64_t i = 0; i < d.tile_size(begin); ++i) {
      total += static_cast<double>(tile[i]);
      if (tile[i] > 0 && tile[i] >= floor)
        heap.at[heap.size++] = {tile[i], static_cast<int32_t>(begin + i)};
    }
  }
  return total;
}

/// Pops the likeliest until top-k or top-p is reached, and draws among those.
int32_t draw_filtered(const Distribution& d, const FilteredDraw& f) {
  Heap heap = {f.candidates, 0};
  const double total = collect(d, f.row.min_p, heap);
  heap.build();
  const int64_t end = heap.size;
  const int64_t most = f.row.top_k > 0 ? smaller(f.row.top_k, end) : end;
  const double mass = f.row.top_p < 1 ? static_cast<double>(f.row.top_p) * total : total * 2;
  double kept = 0;
  for (int64_t k = 0; k < most && (k == 0 || kept < mass); ++k)
    kept += static_cast<double>(heap.pop().weight);

  const double threshold = static_cast<double>(f.u) * kept;
  double sum = 0;
  for (int64_t i = end - 1; i > heap.size; --i) {  // as they were popped
    sum += static_cast<double>(heap.at[i].weight);
    if (sum > threshold) return heap.at[i].id;
  }
  return heap.at[heap.size].id;
}

MILES_INLINE bool is_filtered(const SampleRow& row) {
  return row.top_k > 0 || row.top_p < 1 || row.min_p > 0;
}

int32_t draw(Distribution d, const SampleRow& row, Candidate* candidates) {
  d.max = largest(d.logits, d.vocab);
  if (d.max == -__builtin_inff()) return kNoToken;
  if (row.temperature < kGreedyBelow || row.top_k == 1 || d.max == __builtin_inff())
    return first_equal(d.logits, d.vocab, d.max);
  d.inverse_temperature = 1.0F / row.temperature;
  if (!is_filtered(row)) return draw_unfiltered(d, row.uniform);
  return draw_filtered(d, {row, candidates, row.uniform});
}

}  // namespace

void sample(Exec& exec, const SampleArgs& args) {
  const int64_t rows = extent(args.logits, 0), vocab = extent(args.logits, 1);
  const float* const logits = elements<float>(args.logits);
  const auto* const settings = static_cast<const SampleRow*>(args.rows.data());
  int32_t* const tokens = elements<int32_t>(args.tokens);
  bool any_filtered = false;
  for (int64_t n = 0; n < rows; ++n) any_filtered |= is_filtered(settings[n]);
  // A filtered row needs room for the whole vocabulary: no more threads than there is room for.
  auto* const scratch = reinterpret_cast<Candidate*>(exec.workspace.data());
  const int64_t room = static_cast<int64_t>(exec.workspace.size() / sizeof(Candidate)) / vocab;
  const int64_t threads =
      any_filtered ? smaller(room, omp_get_max_threads()) : omp_get_max_threads();
#pragma omp parallel for schedule(static) \
    num_threads(static_cast <int>(threads)) if (rows > 1 && rows * vocab > kSerialElements / 2)
  for (int64_t n = 0; n < rows; ++n)
    tokens[n] = draw({logits + n * vocab, vocab, 0, 1}, settings[n],
                     any_filtered ? scratch + omp_get_thread_num() * vocab : nullptr);
}

}  // namespace miles::MILES_ISA
