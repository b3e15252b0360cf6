// Two passes, so that nothing is shared: one sums dq over keys, block of queries by block; the
// other dk and dv over queries, tile of keys by tile. Both compute the probabilities again from
// lse: five products become seven, and every task is independent and small.
#include "ops/attention.h"
#include "ops/cpu/attention_products.h"
#include "ops/cpu/attention_tasks.h"
#include "ops/cpu/attention_unit.h"
#include "ops/cpu/vexp.h"

namespace miles::MILES_ISA {
namespace {

/// One thread's panels.
struct Scratch {
  float* keys;           // [D, kKeys]: a tile of keys, transposed
  float* values;         // [D, kKeys]: its values, transposed
  float* query;          // [kRows, stride]
  float* dout;           // [kRows, stride]
  float* first;          // [kKeys, stride]: dv, or a tile of keys as rows
  float* second;         // [kKeys, stride]: dk, or dq
  float* probabilities;  // [kRows, kKeys]
  float* dscores;        // [kRows, kKeys]

  Scratch(float* base, int64_t stride)
      : keys(base),
        values(keys + kKeys * stride),
        query(values + kKeys * stride),
        dout(query + kRows * stride),
        first(dout + kRows * stride),
        second(first + kKeys * stride),
        probabilities(second + kKeys * stride),
        dscores(probabilities + kRows * kKeys) {}
  static int64_t floats(int64_t stride) {
    return (4 * kKeys + 2 * kRows) * stride + 2 * kRows * kKeys;
  }
};

/// Query rows of a task: (token, head of the group), token-major.
struct Block {
  int64_t count;
  int64_t token[kRows];  // within the sequence
  int64_t at[kRows];     // row of q, out, dout, dq and lse
  float lse[kRows];
  float delta[kRows];  // dout · out
};

template <class T>
class Backward {
 public:
  explicit Backward(const AttentionBackwardArgs& a)
      : a_(a),
        heads_(extent(a.q, 1)),
        dim_(extent(a.q, 2)),
        kv_heads_(extent(a.k, 1)),
        group_(heads_ / kv_heads_),
        stride_(panel_stride(dim_)) {}

  /// dq of one block of query rows.
  void run_queries(const AttentionTask& task, float* scratch) const {
    const Scratch s(scratch, stride_);
    const Block block = load_block(task, task.block * kRows, s);
    float* const dq = s.second;
    for (int64_t r = 0; r < block.count; ++r) clear_row(dim_, dq + r * stride_);
    const int64_t seen = (task.block * kRows + block.count - 1) / group_ + 1;  // by the last row
    for (int64_t tile = 0; tile < seen; tile += kKeys) {
      const int64_t keys = load_tile(task, tile, s);
      const int64_t offset = (sequence_begin(task) + tile) * kv_heads_ + task.kv_head;
      for (int64_t j = 0; j < keys; ++j)
        load_row(elements<T>(a_.k) + (offset + j * kv_heads_) * dim_, dim_, s.first + j * stride_);
      score(tile, s, block);
      weighted_sum_rows({.weights = s.dscores,
                         .row_step = kKeys,
                         .step = 1,
                         .from = s.first,
                         .count = keys,
                         .to = dq,
                         .stride = stride_,
                         .keep = nullptr},
                        block.count);
    }
    for (int64_t r = 0; r < block.count; ++r)
      write_row(dq + r * stride_, a_.scale, elements<T>(a_.dq) + block.at[r] * dim_);
  }

  /// dk and dv of one tile of keys.
  void run_keys(const AttentionTask& task, float* scratch) const {
    const Scratch s(scratch, stride_);
    const int64_t tile = task.block * kKeys;
    const int64_t keys = load_tile(task, tile, s);
    float *const dv = s.first, *const dk = s.second;
    for (int64_t j = 0; j < keys; ++j) {
      clear_row(dim_, dv + j * stride_);
      clear_row(dim_, dk + j * stride_);
    }
    for (int64_t begin = tile * group_; begin < tokens(task) * group_; begin += kRows) {
      const Block block = load_block(task, begin, s);
      score(tile, s, block);
      WeightedSumArgs sum = {.weights = s.probabilities,  // transposed: (key, row)
                             .row_step = 1,
                             .step = kKeys,
                             .from = s.dout,
                             .count = block.count,
                             .to = dv,
                             .stride = stride_,
                             .keep = nullptr};
      weighted_sum_rows(sum, keys);
      sum.weights = s.dscores;
      sum.from = s.query;
      sum.to = dk;
      weighted_sum_rows(sum, keys);
    }
    for (int64_t j = 0; j < keys; ++j) {
      const int64_t at = (sequence_begin(task) + tile + j) * kv_heads_ + task.kv_head;
      write_row(dv + j * stride_, 1, elements<T>(a_.dv) + at * dim_);
      write_row(dk + j * stride_, a_.scale, elements<T>(a_.dk) + at * dim_);
    }
  }

  int64_t stride() const { return stride_; }
  /// Of one sequence.
  int64_t work(int64_t sequence) const {
    const int64_t rows = tokens({sequence, 0, 0});
    return attention_work(rows * heads_, rows, dim_);
  }

 private:
  int64_t sequence_begin(const AttentionTask& task) const {
    return elements<int32_t>(a_.query_begin)[task.sequence];
  }
  int64_t tokens(const AttentionTask& task) const {
    return elements<int32_t>(a_.query_begin)[task.sequence + 1] - sequence_begin(task);
  }

  Block load_block(const AttentionTask& task, int64_t begin, const Scratch& s) const {
    Block block;
    block.count = smaller(kRows, tokens(task) * group_ - begin);
    for (int64_t r = 0; r < block.count; ++r) {
      block.token[r] = (begin + r) / group_;
      block.at[r] = (sequence_begin(task) + block.token[r]) * heads_ + task.kv_head * group_ +
                    (begin + r) % group_;
      const int64_t at = block.at[r] * dim_;
      const T* const out = elements<T>(a_.out) + at;
      const float* const dout = s.dout + r * stride_;
      load_row(elements<T>(a_.q) + at, dim_, s.query + r * stride_);
      load_row(elements<T>(a_.dout) + at, dim_, s.dout + r * stride_);
      block.lse[r] = elements<float>(a_.lse)[block.at[r]];
      block.delta[r] = sum_over(dim_, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
        return load(out + i, count) * load(dout + i);
      });
    }
    return block;
  }

  /// Loads keys and values, transposed; returns how many there are.
  int64_t load_tile(const AttentionTask& task, int64_t tile, const Scratch& s) const {
    const int64_t count = smaller(kKeys, tokens(task) - tile);
    const T *keys[kKeys], *values[kKeys];
    for (int64_t j = 0; j < kKeys; ++j) {
      const int64_t at = (sequence_begin(task) + tile + j) * kv_heads_ + task.kv_head;
      keys[j] = j < count ? elements<T>(a_.k) + at * dim_ : nullptr;
      values[j] = j < count ? elements<T>(a_.v) + at * dim_ : nullptr;
    }
    load_transposed(keys, dim_, s.keys);
    load_transposed(values, dim_, s.values);
    return count;
  }

  /// Probabilities and (unscaled) gradients of the scores, of a block's rows and a tile's keys.
  void score(int64_t tile, const Scratch& s, const Block& block) const {
    dot_rows({s.query, stride_, s.keys, dim_, s.probabilities}, block.count);
    dot_rows({s.dout, stride_, s.values, dim_, s.dscores}, block.count);
    VecI index;
    for (int l = 0; l < kWidth; ++l) index[l] = l;
    for (int64_t r = 0; r < block.count; ++r) {
      const auto visible =
          static_cast<int32_t>(larger(0, smaller(kKeys, block.token[r] + 1 - tile)));
      for (int j = 0; j < kKeys; j += kWidth) {
        float* const p = s.probabilities + r * kKeys + j;
        float* const ds = s.dscores + r * kKeys + j;
        const Vec e = vexp(load(p) * a_.scale - block.lse[r]);
        const Vec probability = index + j < visible ? e : Vec{};
        store(p, probability);
        store(ds, probability * (load(ds) - block.delta[r]));
      }
    }
  }

  void write_row(const float* from, float scale, T* to) const {
    for_each_vec(dim_, [&](int64_t i, int count)
                           MILES_INLINE_LAMBDA { store(to + i, load(from + i) * scale, count); });
  }

  const AttentionBackwardArgs& a_;
  int64_t heads_, dim_, kv_heads_;
  int64_t group_;   // query heads of one key head
  int64_t stride_;  // of panels
};

template <class T>
void run_all(Exec& exec, const AttentionBackwardArgs& args) {
  const Backward<T> backward(args);
  const int64_t sequences = args.query_begin.elements() - 1;
  const int64_t kv_heads = extent(args.k, 1), heads = extent(args.q, 1);
  AttentionTasks tasks(reinterpret_cast<int32_t*>(exec.workspace.data()),
                       elements<int32_t>(args.query_begin), sequences);
  const ThreadScratch scratch = cut_scratch(exec, sequences, Scratch::floats(backward.stride()));
  int64_t work = 0;
  for (int64_t b = 0; b < sequences; ++b) work += backward.work(b);
  tasks.cut(1, kKeys, kv_heads);
  int64_t count = tasks.count();
#pragma omp parallel for schedule(dynamic) num_threads(scratch.threads) if (work > kSerialWork)
  for (int64_t i = 0; i < count; ++i)  // a sequence's first keys have the most queries: first
    backward.run_keys(tasks.at(i), scratch.base + omp_get_thread_num() * scratch.floats);
  tasks.cut(heads / kv_heads, kRows, kv_heads);
  count = tasks.count();
#pragma omp parallel for schedule(dynamic) num_threads(scratch.threads) if (work > kSerialWork)
  for (int64_t i = 0; i < count; ++i)
    backward.run_queries(tasks.at(count - 1 - i),
                         scratch.base + omp_get_thread_num() * scratch.floats);
}

}  // namespace

void attention_backward(Exec& exec, const AttentionBackwardArgs& args) {
#if defined(__AVX512F__)
  if (on_matrix_unit(args.q)) return unit_attention_backward(exec, args);
#endif
  if (args.q.dtype() == DType::bf16) return run_all<BFloat16>(exec, args);
  run_all<float>(exec, args);
}

}  // namespace miles::MILES_ISA
