// The forward of attention on the matrix unit: the recurrence of attention.cpp with 16 rows across
// a vector's lanes, so that a row's maximum and sum need no reduction.
#include "ops/cpu/attention_unit.h"

#include "ops/cpu/attention_tasks.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/vexp.h"

#if defined(__AVX512F__)

namespace miles::MILES_ISA {
namespace {

/// One thread's panels.
struct Scratch {
  BFloat16* keys;    // [kKeys, D]
  uint32_t* values;  // [kPairs, D]: pairs of keys
  uint32_t* query;   // [kGroups, D / 2, 16]: pairs of elements, rows across lanes
  float* scores;     // [kKeys, 16], then probabilities
  Halves weights;    // [16, kKeys]: the same as left operand
  float* out;        // [kRows, D]: Σ p·v so far
  float* spare;      // [16, D]

  Scratch(float* base, int64_t dim)
      : keys(reinterpret_cast<BFloat16*>(base)),
        values(reinterpret_cast<uint32_t*>(keys + kKeys * dim)),
        query(values + kPairs * dim),
        scores(reinterpret_cast<float*>(query + kRows * dim / 2)),
        weights{reinterpret_cast<BFloat16*>(scores + kScores),
                reinterpret_cast<BFloat16*>(scores + kScores + kScores / 2)},
        out(scores + 2 * kScores),
        spare(out + kRows * dim) {}
  static int64_t floats(int64_t dim) {
    return (kKeys / 2 + kPairs + kRows / 2 + kRows + kUnitRows) * dim + 2 * kScores;
  }
};

/// The running softmax of 16 rows, one a lane.
struct Group {
  VecI position;  // of the row's token; −1 where there is no row
  VecI visible;   // keys of the current tile that the row may see
  Vec max;        // of the scores so far
  Vec sum;        // Σ e^(score − max) so far
};

/// Keys of a tile, and where their values are.
struct Tile {
  int64_t begin, count;
  const BFloat16* values[kKeys];  // null beyond count
  bool finite;                    // all values
};

/// Masks a group's scores, turns them into probabilities, updates maximum and sum. Returns
/// e^(old max − new max).
Vec softmax(float* scores, float scale, Group& g) {
  Vec top = g.max;
  for (int32_t j = 0; j < kKeys; ++j) {
    const Vec scaled = load(scores + j * kUnitRows) * scale;
    const Vec s = g.visible > j ? scaled : splat(-__builtin_inff());
    store(scores + j * kUnitRows, s);
    top = vmax(s, top);
  }
  Vec sums[4] = {};
  for (int j = 0; j < kKeys; ++j) {
    const Vec p = vexp(load(scores + j * kUnitRows) - top);
    store(scores + j * kUnitRows, p);
    sums[j % 4] += p;
  }
  const Vec keep = vexp(g.max - top);
  g.sum = g.sum * keep + ((sums[0] + sums[1]) + (sums[2] + sums[3]));
  g.max = top;
  return keep;
}

template <class Unit>
class Forward {
 public:
  explicit Forward(const AttentionArgs& a)
      : a_(a),
        heads_(extent(a.q, 1)),
        dim_(extent(a.q, 2)),
        kv_heads_(extent(a.k_pool, 1)),
        group_(heads_ / kv_heads_) {}

  void run(const AttentionTask& task, float* scratch) const {
    const int32_t* const query_begin = elements<int32_t>(a_.query_begin) + task.sequence;
    const int64_t tokens = query_begin[1] - query_begin[0];
    const int64_t context = elements<int32_t>(a_.context)[task.sequence];
    const int64_t begin = task.block * kRows;  // rows are (token, head of the group), token-major
    const int64_t count = smaller(kRows, tokens * group_ - begin);
    const int64_t groups = (count + kUnitRows - 1) / kUnitRows;
    const Scratch s(scratch, dim_);
    __builtin_memset(s.out, 0, static_cast<size_t>(groups * kUnitRows * dim_) * sizeof(float));
    Group group[kGroups];
    int64_t at[kRows];
    for (int64_t g = 0; g < groups; ++g) {
      const BFloat16* rows[kUnitRows] = {};
      group[g] = Group{VecI{} - 1, VecI{}, splat(-__builtin_inff()), Vec{}};
      for (int64_t i = 0; i < smaller(kUnitRows, count - g * kUnitRows); ++i) {
        const int64_t r = g * kUnitRows + i, token = (begin + r) / group_;
        at[r] = (query_begin[0] + token) * heads_ + task.kv_head * group_ + (begin + r) % group_;
        rows[i] = elements<BFloat16>(a_.q) + at[r] * dim_;
        group[g].position[i] = static_cast<int32_t>(context - tokens + token);
      }
      transpose_pairs(rows, dim_, s.query + g * kUnitRows * dim_ / 2);
    }
    const int64_t seen = context - tokens + (begin + count - 1) / group_ + 1;  // by the last row
    for (int64_t key = 0; key < seen; key += kKeys) {
      const Tile tile = load_tile(task, {key, smaller(kKeys, seen - key), {}, true}, s);
      for (int64_t g = 0; g < groups; ++g) attend(tile, s, g, group[g]);
    }
    for (int64_t r = 0; r < count; ++r) {
      const Group& g = group[r / kUnitRows];
      finish(s.out + r * dim_, g.max[r % kUnitRows], g.sum[r % kUnitRows], at[r]);
    }
  }

  int64_t dim() const { return dim_; }
  /// Of one sequence.
  int64_t work(int64_t sequence) const {
    const int32_t* const query_begin = elements<int32_t>(a_.query_begin) + sequence;
    return attention_work((query_begin[1] - query_begin[0]) * heads_,
                          elements<int32_t>(a_.context)[sequence], dim_) /
           4;
  }

 private:
  Tile load_tile(const AttentionTask& task, Tile tile, const Scratch& s) const {
    const KeyRows key_rows = keys_of(a_, task.sequence);
    const BFloat16* keys[kKeys] = {};
    for (int64_t j = 0; j < kKeys; ++j) tile.values[j] = nullptr;
    for (int64_t j = 0; j < tile.count; ++j) {
      const int64_t offset = (key_rows.row(tile.begin + j) * kv_heads_ + task.kv_head) * dim_;
      keys[j] = elements<BFloat16>(a_.k_pool) + offset;
      tile.values[j] = elements<BFloat16>(a_.v_pool) + offset;
      prefetch_row(keys[j], dim_);
      prefetch_row(tile.values[j], dim_);
    }
    copy_rows(keys, dim_, s.keys);
    for (int j = 0; j < kPairs; ++j)
      tile.finite &=
          pair_rows(tile.values[2 * j], tile.values[2 * j + 1], dim_, s.values + j * dim_);
    return tile;
  }

  /// One tile for 16 rows.
  void attend(const Tile& tile, const Scratch& s, int64_t g, Group& group) const {
    group.visible = group.position + (1 - static_cast<int32_t>(tile.begin));
    int32_t most = 0;
    for (int i = 0; i < kUnitRows; ++i) most = group.visible[i] > most ? group.visible[i] : most;
    if (most == 0) return;
    multiply_group<Unit>(s.keys, s.query + g * kUnitRows * dim_ / 2, dim_, s.scores);
    const Vec keep = softmax(s.scores, a_.scale, group);
    split_transposed(s.scores, s.weights);
    float* const out = s.out + g * kUnitRows * dim_;
    for (int r = 0; r < kUnitRows; ++r)
      for (int64_t d = 0; d < dim_; d += kWidth)
        store(out + r * dim_ + d, load(out + r * dim_ + d) * keep[r]);
    if (tile.finite) return add_product<Unit>(s.weights, s.values, dim_, out);
    add_row_by_row(tile, s, group, out);
  }

  /// Where a value is no number, 0 times it is none either: each row is multiplied with the values
  /// that it sees alone. Then the next group finds all of them again.
  void add_row_by_row(const Tile& tile, const Scratch& s, const Group& group, float* out) const {
    const auto row_bytes = static_cast<size_t>(dim_) * sizeof(float);
    const auto lay = [&](int64_t count) {
      for (int64_t j = 0; j < kPairs; ++j)
        pair_rows(2 * j < count ? tile.values[2 * j] : nullptr,
                  2 * j + 1 < count ? tile.values[2 * j + 1] : nullptr, dim_, s.values + j * dim_);
    };
    for (int r = 0; r < kUnitRows; ++r) {
      lay(group.visible[r]);
      __builtin_memcpy(s.spare, out, kUnitRows * row_bytes);
      add_product<Unit>(s.weights, s.values, dim_, s.spare);
      __builtin_memcpy(out + r * dim_, s.spare + r * dim_, row_bytes);
    }
    lay(kKeys);
  }

  void finish(const float* from, float max, float sum, int64_t at) const {
    const float inverse = 1.0F / sum;
    BFloat16* const to = elements<BFloat16>(a_.out) + at * dim_;
    // A tile that a row sees nothing of may have made −0 a 0: adding 0 makes it one always.
    for (int64_t d = 0; d < dim_; d += kWidth) store(to + d, load(from + d) * inverse + Vec{});
    if (a_.lse.data() != nullptr) elements<float>(a_.lse)[at] = max + __builtin_logf(sum);
  }

  const AttentionArgs& a_;
  int64_t heads_, dim_, kv_heads_;
  int64_t group_;  // query heads of one key head
};

template <class Unit>
void run_all(Exec& exec, const AttentionArgs& args) {
  const Forward<Unit> forward(args);
  const int64_t sequences = args.context.elements();
  const int64_t kv_heads = extent(args.k_pool, 1), heads = extent(args.q, 1);
  AttentionTasks tasks(reinterpret_cast<int32_t*>(exec.workspace.data()),
                       elements<int32_t>(args.query_begin), sequences);
  tasks.cut(heads / kv_heads, kRows, kv_heads);
  const ThreadScratch scratch = cut_scratch(exec, sequences, Scratch::floats(forward.dim()));
  const int64_t count = tasks.count();
  int64_t work = 0;
  for (int64_t b = 0; b < sequences; ++b) work += forward.work(b);
#pragma omp parallel num_threads(scratch.threads) if (work > kSerialWork)
  {
    Unit::begin();
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < count; ++i)  // the last blocks of a sequence see the most keys: first
      forward.run(tasks.at(count - 1 - i), scratch.base + omp_get_thread_num() * scratch.floats);
    Unit::end();
  }
}

}  // namespace

bool on_matrix_unit(const Tensor& q) {
  if (q.dtype() != DType::bf16 || extent(q, 2) % kUnitDepth != 0) return false;
  return emulate_amx() || use_amx(extent(q, 2));
}

void unit_attention(Exec& exec, const AttentionArgs& args) {
  if (emulate_amx()) return run_all<EmulatedUnit>(exec, args);
  run_all<AmxUnit>(exec, args);
}

}  // namespace miles::MILES_ISA

#endif
