#include "ops/sample.h"

#include <omp.h>

#include "base/rng.h"
#include "ops/cpu/row_loops.h"

namespace miles::MILES_ISA {
namespace {

constexpr int64_t kTile = 1024;         // logits whose probabilities are summed together
constexpr float kGreedyBelow = 1e-6F;   // temperatures that mean "the largest"
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

/// Unnormalised probabilities of n ≤ kTile logits; 0 for NaN.
struct Weights {
  const float* logits;
  float max;
  float inverse_temperature;
  MILES_INLINE Vec at(int64_t i, int count) const {
    const Vec w = vexp((load(logits + i, count) - max) * inverse_temperature);
    return w == w ? w : Vec{};
  }
};

float tile_sum(const Weights& weights, int64_t begin, int64_t n) {
  return sum_over(n, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
    Vec w = weights.at(begin + i, count);
    if (count < kWidth)
      for (int l = count; l < kWidth; ++l) w[l] = 0;
    return w;
  });
}

/// The first token of the tile at which the running sum passes `threshold`; the tile's last possible
/// one when rounding keeps it below.
int32_t draw_in_tile(const Weights& weights, int64_t begin, int64_t n, double threshold) {
  float tile[kTile];
  for_each_vec(n, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
    store(tile + i, weights.at(begin + i, count), count);
  });
  double sum = 0;
  int32_t last = kNoToken;
  for (int64_t i = 0; i < n; ++i) {
    if (tile[i] == 0) continue;
    last = static_cast<int32_t>(begin + i);
    sum += static_cast<double>(tile[i]);
    if (sum > threshold) break;
  }
  return last;
}

/// Inverse of the cumulative distribution in id order; no filter, so no order is needed.
int32_t draw_unfiltered(const Weights& weights, int64_t vocab, float u) {
  double total = 0;
  for (int64_t t = 0; t < vocab; t += kTile)
    total += static_cast<double>(tile_sum(weights, t, smaller(kTile, vocab - t)));
  double left = static_cast<double>(u) * total;
  int64_t chosen = 0;  // the last tile that holds anything, should rounding pass them all
  for (int64_t t = 0; t < vocab; t += kTile) {
    const auto sum = static_cast<double>(tile_sum(weights, t, smaller(kTile, vocab - t)));
    if (sum == 0) continue;
    chosen = t;
    if (sum > left) break;
    left -= sum;
  }
  return draw_in_tile(weights, chosen, smaller(kTile, vocab - chosen), left);
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

/// Collects what passes min-p, pops the likeliest until top-k or top-p is reached, draws among those.
int32_t draw_filtered(const Weights& weights, int64_t vocab, const SampleRow& row,
                      Candidate* scratch, float u) {
  const float floor = row.min_p < 1 ? row.min_p : 1.0F;  // the likeliest always stays
  Heap heap = {scratch, 0};
  double total = 0;  // of all tokens: top-p is a share of the whole distribution
  float tile[kTile];
  for (int64_t begin = 0; begin < vocab; begin += kTile) {
    const int64_t n = smaller(kTile, vocab - begin);
    for_each_vec(n, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
      store(tile + i, weights.at(begin + i, count), count);
    });
    for (int64_t i = 0; i < n; ++i) {
      total += static_cast<double>(tile[i]);
      if (tile[i] > 0 && tile[i] >= floor)
        heap.at[heap.size++] = {tile[i], static_cast<int32_t>(begin + i)};
    }
  }
  heap.build();
  const int64_t end = heap.size;
  const int64_t most = row.top_k > 0 ? smaller(row.top_k, end) : end;
  const double mass = row.top_p < 1 ? static_cast<double>(row.top_p) * total : total * 2;
  double kept = 0;
  for (int64_t k = 0; k < most && (k == 0 || kept < mass); ++k)
    kept += static_cast<double>(heap.pop().weight);

  const double threshold = static_cast<double>(u) * kept;
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

int32_t draw(const float* logits, int64_t vocab, const SampleRow& row, Candidate* scratch) {
  const float max = largest(logits, vocab);
  if (max == -__builtin_inff()) return kNoToken;
  if (row.temperature < kGreedyBelow || row.top_k == 1 || max == __builtin_inff())
    return first_equal(logits, vocab, max);
  const Weights weights = {logits, max, 1.0F / row.temperature};
  const float u = uniform(row.seed, RngUse::sampling, row.stream, row.position);
  if (!is_filtered(row)) return draw_unfiltered(weights, vocab, u);
  return draw_filtered(weights, vocab, row, scratch, u);
}

}  // namespace

void sample(Exec& exec, const SampleArgs& args) {
  const int64_t rows = extent(args.logits, 0), vocab = extent(args.logits, 1);
  const float* const logits = elements<float>(args.logits);
  const SampleRow* const settings = args.rows.data();
  int32_t* const tokens = elements<int32_t>(args.tokens);
  bool any_filtered = false;
  for (int64_t n = 0; n < rows; ++n) any_filtered |= is_filtered(settings[n]);
  // A filtered row needs room for the whole vocabulary: no more threads than there is room for.
  auto* const scratch = reinterpret_cast<Candidate*>(exec.workspace.data());
  const int64_t room = static_cast<int64_t>(exec.workspace.size() / sizeof(Candidate)) / vocab;
  const int64_t threads = any_filtered ? smaller(room, omp_get_max_threads()) : omp_get_max_threads();
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(threads)) \
    if (rows > 1 && rows * vocab > kSerialElements / 2)
  for (int64_t n = 0; n < rows; ++n)
    tokens[n] = draw(logits + n * vocab, vocab, settings[n],
                     any_filtered ? scratch + omp_get_thread_num() * vocab : nullptr);
}

}  // namespace miles::MILES_ISA
