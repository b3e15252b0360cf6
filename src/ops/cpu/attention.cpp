#include "ops/attention.h"

#include "ops/cpu/attention_products.h"
#include "ops/cpu/attention_tasks.h"
#include "ops/cpu/attention_unit.h"
#include "ops/cpu/vexp.h"

namespace miles::MILES_ISA {
namespace {

constexpr int kTileVecs = kKeys / kWidth;

/// One thread's panels.
struct Scratch {
  float* keys;    // [D, kKeys]: a tile of keys, transposed
  float* values;  // [kKeys, stride]
  float* query;   // [kRows, stride]
  float* out;     // [kRows, stride]: Σ p·v so far
  float* scores;  // [kRows, kKeys]: scores, then probabilities
  int64_t stride;

  Scratch(float* base, int64_t row)
      : keys(base),
        values(keys + kKeys * row),
        query(values + kKeys * row),
        out(query + kRows * row),
        scores(out + kRows * row),
        stride(row) {}
  static int64_t floats(int64_t stride) { return 2 * (kKeys + kRows) * stride + kRows * kKeys; }
};

/// The running softmax of a block's rows.
struct Rows {
  int64_t count;
  int64_t visible[kRows];  // keys of the current tile that the row may see
  float max[kRows];        // of the scores so far
  float sum[kRows];        // Σ e^(score − max) so far
  float keep[kRows];       // e^(old max − new max): what the new maximum leaves of the sums
};

/// Keys begin … begin + count − 1 of a sequence.
struct KeyTile {
  int64_t begin, count;
};

/// Scales and masks row r's scores, turns them into probabilities, updates its maximum and sum.
void softmax_row(const Scratch& scratch, float scale, Rows& rows, int64_t r) {
  float* const scores = scratch.scores + r * kKeys;
  VecI index;
  for (int l = 0; l < kWidth; ++l) index[l] = l;
  const auto visible = static_cast<int32_t>(rows.visible[r]);
  Vec s[kTileVecs];
  Vec top = splat(rows.max[r]);
#pragma GCC unroll 16
  for (int v = 0; v < kTileVecs; ++v) {
    const Vec scaled = load(scores + v * kWidth) * scale;
    s[v] = index + v * kWidth < visible ? scaled : splat(-__builtin_inff());
    top = vmax(s[v], top);
  }
  float max = top[0];
  for (int l = 1; l < kWidth; ++l) max = top[l] > max ? top[l] : max;
  PartialSums sums = {};
#pragma GCC unroll 16
  for (int v = 0; v < kTileVecs; ++v) {
    const Vec p = vexp(s[v] - max);
    store(scores + v * kWidth, p);
    sums.v[v % kSumVecs] += p;
  }
  rows.keep[r] = vexp(splat(rows.max[r] - max))[0];
  rows.sum[r] = rows.sum[r] * rows.keep[r] + sum_of(sums);
  rows.max[r] = max;
}

/// Runs of rows that see equally many keys share register blocks; a key that a row does not see is
/// never multiplied, so that nothing it holds can touch the row.
void add_values(const Scratch& s, const Rows& rows, int64_t first) {
  for (int64_t r = first; r < rows.count;) {
    int64_t end = r + 1;
    while (end < rows.count && rows.visible[end] == rows.visible[r]) ++end;
    weighted_sum_rows({.weights = s.scores + r * kKeys,
                       .row_step = kKeys,
                       .step = 1,
                       .from = s.values,
                       .count = rows.visible[r],
                       .to = s.out + r * s.stride,
                       .stride = s.stride,
                       .keep = rows.keep + r},
                      end - r);
    r = end;
  }
}

template <class T>
class Forward {
 public:
  explicit Forward(const AttentionArgs& a)
      : a_(a),
        heads_(extent(a.q, 1)),
        dim_(extent(a.q, 2)),
        kv_heads_(extent(a.k_pool, 1)),
        group_(heads_ / kv_heads_),
        stride_(panel_stride(dim_)) {}

  void run(const AttentionTask& task, float* scratch) const {
    const int32_t* const query_begin = elements<int32_t>(a_.query_begin) + task.sequence;
    const int64_t tokens = query_begin[1] - query_begin[0];
    const int64_t context = elements<int32_t>(a_.context)[task.sequence];
    const int64_t begin = task.block * kRows;  // rows are (token, head of the group), token-major
    const Scratch s(scratch, stride_);
    Rows rows;
    rows.count = smaller(kRows, tokens * group_ - begin);
    int64_t position[kRows], at[kRows];
    for (int64_t r = 0; r < rows.count; ++r) {
      const int64_t token = (begin + r) / group_, head = (begin + r) % group_;
      position[r] = context - tokens + token;
      at[r] = (query_begin[0] + token) * heads_ + task.kv_head * group_ + head;
      load_row(elements<T>(a_.q) + at[r] * dim_, dim_, s.query + r * stride_);
      clear_row(dim_, s.out + r * stride_);
      rows.max[r] = -__builtin_inff();
      rows.sum[r] = 0;
    }
    const int64_t seen =
        context - tokens + (begin + rows.count - 1) / group_ + 1;  // by the last row
    for (int64_t tile = 0; tile < seen; tile += kKeys) {
      load_tile(task, {tile, smaller(kKeys, seen - tile)}, s);
      for (int64_t r = 0; r < rows.count; ++r)
        rows.visible[r] = larger(0, smaller(kKeys, position[r] + 1 - tile));
      attend(s, rows);
    }
    finish(s, rows, at);
  }

  int64_t stride() const { return stride_; }
  /// Of one sequence.
  int64_t work(int64_t sequence) const {
    const int32_t* const query_begin = elements<int32_t>(a_.query_begin) + sequence;
    return attention_work((query_begin[1] - query_begin[0]) * heads_,
                          elements<int32_t>(a_.context)[sequence], dim_);
  }

 private:
  void load_tile(const AttentionTask& task, KeyTile tile, const Scratch& s) const {
    constexpr int64_t kAhead = 8;  // rows
    const KeyRows key_rows = keys_of(a_, task.sequence);
    const T *keys[kKeys] = {}, *values[kKeys + kAhead];
    for (int64_t j = 0; j < tile.count; ++j) {
      const int64_t offset = (key_rows.row(tile.begin + j) * kv_heads_ + task.kv_head) * dim_;
      keys[j] = elements<T>(a_.k_pool) + offset;
      values[j] = elements<T>(a_.v_pool) + offset;
    }
    for (int64_t j = tile.count; j < tile.count + kAhead; ++j) values[j] = values[tile.count - 1];
    for (int64_t j = 0; j < tile.count; ++j) {
      prefetch_row(keys[j], dim_);
      prefetch_row(values[j + kAhead], dim_);
      load_row(values[j], dim_, s.values + j * stride_);
    }
    load_transposed(keys, dim_, s.keys);
  }

  /// One tile for the rows that see any of it.
  void attend(const Scratch& s, Rows& rows) const {
    int64_t first = 0;
    while (rows.visible[first] == 0) ++first;
    dot_rows({.rows = s.query + first * stride_,
              .stride = stride_,
              .tile = s.keys,
              .dim = dim_,
              .products = s.scores + first * kKeys},
             rows.count - first);
    for (int64_t r = first; r < rows.count; ++r) softmax_row(s, a_.scale, rows, r);
    add_values(s, rows, first);
  }

  void finish(const Scratch& s, const Rows& rows, const int64_t* at) const {
    for (int64_t r = 0; r < rows.count; ++r) {
      const float inverse = 1.0F / rows.sum[r];
      const float* const from = s.out + r * stride_;
      T* const to = elements<T>(a_.out) + at[r] * dim_;
      for_each_vec(dim_, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
        store(to + i, load(from + i) * inverse, count);
      });
      if (a_.lse.data() != nullptr)
        elements<float>(a_.lse)[at[r]] = rows.max[r] + __builtin_logf(rows.sum[r]);
    }
  }

  const AttentionArgs& a_;
  int64_t heads_, dim_, kv_heads_;
  int64_t group_;   // query heads of one key head
  int64_t stride_;  // of panels
};

template <class T>
void run_all(Exec& exec, const AttentionArgs& args) {
  const Forward<T> forward(args);
  const int64_t sequences = args.context.elements();
  const int64_t kv_heads = extent(args.k_pool, 1), heads = extent(args.q, 1);
  AttentionTasks tasks(reinterpret_cast<int32_t*>(exec.workspace.data()),
                       elements<int32_t>(args.query_begin), sequences);
  tasks.cut(heads / kv_heads, kRows, kv_heads);
  const ThreadScratch scratch = cut_scratch(exec, sequences, Scratch::floats(forward.stride()));
  const int64_t count = tasks.count();
  int64_t work = 0;
  for (int64_t b = 0; b < sequences; ++b) work += forward.work(b);
#pragma omp parallel for schedule(dynamic) num_threads(scratch.threads) if (work > kSerialWork)
  for (int64_t i = 0; i < count; ++i)  // the last blocks of a sequence see the most keys: first
    forward.run(tasks.at(count - 1 - i), scratch.base + omp_get_thread_num() * scratch.floats);
}

}  // namespace

void attention(Exec& exec, const AttentionArgs& args) {
#if defined(__AVX512F__)
  if (on_matrix_unit(args.q)) return unit_attention(exec, args);
#endif
  if (args.q.dtype() == DType::bf16) return run_all<BFloat16>(exec, args);
  run_all<float>(exec, args);
}

}  // namespace miles::MILES_ISA
