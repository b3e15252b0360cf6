// The backward of attention on the matrix unit: the two passes of attention_backward.cpp, or, where
// a sequence's sums have room beside each other, one. Every sum has its terms in the same order
// either way, and so the same bits.
#include "ops/cpu/attention_tasks.h"
#include "ops/cpu/attention_unit.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/vexp.h"

#if defined(__AVX512F__)

namespace miles::MILES_ISA {
namespace {

/// One thread's panels.
struct Scratch {
  BFloat16* keys;        // [kKeys, D]
  BFloat16* values;      // [kKeys, D]
  uint32_t* key_pairs;   // [kPairs, D]: pairs of keys
  uint32_t* query;       // [kGroups, D / 2, 16]: pairs of elements, rows across lanes
  uint32_t* dout;        // [kGroups, D / 2, 16]
  uint32_t* query_rows;  // [kPairs, D]: pairs of rows
  uint32_t* dout_rows;   // [kPairs, D]
  float* scores;         // [kKeys, 16], then probabilities
  float* dscores;        // [kKeys, 16]
  Halves p, ds;          // [kKeys, kRows]: left operands
  Halves ds_rows;        // [16, kKeys]: the same
  float* first;          // [kRows, D]: dv, or dq
  float* second;         // [kKeys, D]: dk

  Scratch(float* base, int64_t dim) {
    const auto words = [&base](int64_t count) {
      float* const at = base;
      base += count;
      return at;
    };
    const auto halves = [&] { return reinterpret_cast<BFloat16*>(words(kKeys * kRows / 2)); };
    const auto pairs = [&] { return reinterpret_cast<uint32_t*>(words(kPairs * dim)); };
    keys = reinterpret_cast<BFloat16*>(pairs());
    values = reinterpret_cast<BFloat16*>(pairs());
    for (uint32_t** panel : {&key_pairs, &query, &dout, &query_rows, &dout_rows}) *panel = pairs();
    scores = words(kScores);
    dscores = words(kScores);
    p = {halves(), halves()};
    ds = {halves(), halves()};
    ds_rows = {reinterpret_cast<BFloat16*>(words(kScores / 2)),
               reinterpret_cast<BFloat16*>(words(kScores / 2))};
    first = words(kRows * dim);
    second = words(kKeys * dim);
  }
  static int64_t floats(int64_t dim) {
    return (7 * kPairs + kRows + kKeys) * dim + 3 * kScores + 4 * kKeys * kRows / 2;
  }
};

/// Query rows of a task: (token, head of the group), token-major.
struct Block {
  int64_t count;
  int64_t at[kRows];  // row of q, out, dout, dq and lse
  struct Group {      // of 16 rows, one a lane
    VecI token;       // within the sequence; −1 where there is no row
    Vec lse;
    Vec delta;  // dout · out
  } group[kGroups];
};

template <class Unit>
class Backward {
 public:
  explicit Backward(const AttentionBackwardArgs& a)
      : a_(a),
        heads_(extent(a.q, 1)),
        dim_(extent(a.q, 2)),
        kv_heads_(extent(a.k, 1)),
        group_(heads_ / kv_heads_) {}

  /// dq of one block of query rows.
  void run_queries(const AttentionTask& task, float* scratch) const {
    const Scratch s(scratch, dim_);
    const Block block = load_block(task, task.block * kRows, s);
    clear(s.first);
    const int64_t seen = (task.block * kRows + block.count - 1) / group_ + 1;  // by the last row
    for (int64_t tile = 0; tile < seen; tile += kKeys) {
      load_tile(task, tile, s);
      for (int64_t g = 0; g * kUnitRows < block.count; ++g) {
        score(tile, s, block, g);
        add_to_queries(s, g);
      }
    }
    write_queries(block, s);
  }

  /// dk and dv of one tile of keys.
  void run_keys(const AttentionTask& task, float* scratch) const {
    const Scratch s(scratch, dim_);
    const int64_t tile = task.block * kKeys;
    const int64_t keys = load_tile(task, tile, s);
    clear(s.first);
    clear(s.second);
    for (int64_t begin = tile * group_; begin < tokens(task) * group_; begin += kRows) {
      const Block block = load_block(task, begin, s);
      for (int64_t g = 0; g < kGroups; ++g) {
        score(tile, s, block, g);
        split_for_keys(s, g);
      }
      add_to_keys(s, keys, s.first, s.second);
    }
    write_keys(task, tile, keys, s.first, s.second);
  }

  /// Both of a whole sequence: scores are computed once, and a block is loaded once.
  void run_sequence(const AttentionTask& task, float* scratch) const {
    const Scratch s(scratch, dim_);
    const int64_t count = tokens(task), size = whole_tiles(count) * dim_;
    float* const dv = scratch + Scratch::floats(dim_);
    float* const dk = dv + size;
    __builtin_memset(dv, 0, static_cast<size_t>(2 * size) * sizeof(float));
    for (int64_t begin = 0; begin < count * group_; begin += kRows) {
      const Block block = load_block(task, begin, s);
      clear(s.first);
      const int64_t seen = (begin + block.count - 1) / group_ + 1;
      for (int64_t tile = 0; tile < seen; tile += kKeys) {
        const int64_t keys = load_tile(task, tile, s);
        for (int64_t g = 0; g < kGroups; ++g) {
          score(tile, s, block, g);
          split_for_keys(s, g);
          if (g * kUnitRows < block.count) add_to_queries(s, g);
        }
        add_to_keys(s, keys, dv + tile * dim_, dk + tile * dim_);
      }
      write_queries(block, s);
    }
    write_keys(task, 0, count, dv, dk);
  }
  /// What it needs of scratch for as many tokens.
  int64_t sequence_floats(int64_t count) const {
    return Scratch::floats(dim_) + 2 * whole_tiles(count) * dim_;
  }

  int64_t dim() const { return dim_; }
  int64_t tokens(int64_t sequence) const { return tokens(AttentionTask{sequence, 0, 0}); }
  /// Of one sequence.
  int64_t work(int64_t sequence) const {
    const int64_t rows = tokens(sequence);
    return attention_work(rows * heads_, rows, dim_) / 4;
  }

 private:
  int64_t sequence_begin(const AttentionTask& task) const {
    return elements<int32_t>(a_.query_begin)[task.sequence];
  }
  int64_t tokens(const AttentionTask& task) const {
    return elements<int32_t>(a_.query_begin)[task.sequence + 1] - sequence_begin(task);
  }
  static int64_t whole_tiles(int64_t keys) { return (keys + kKeys - 1) / kKeys * kKeys; }

  /// A group's scores with a tile, as the left operands of the products that go to keys.
  static void split_for_keys(const Scratch& s, int64_t g) {
    split_group(s.scores, g, s.p);
    split_group(s.dscores, g, s.ds);
  }
  /// Of a block of rows.
  void add_to_keys(const Scratch& s, int64_t keys, float* dv, float* dk) const {
    for (int64_t j = 0; j < keys; j += kUnitRows) {
      const int64_t from = j * kRows, to = j * dim_;
      add_product<Unit>({s.p.high + from, s.p.low + from}, s.dout_rows, dim_, dv + to);
      add_product<Unit>({s.ds.high + from, s.ds.low + from}, s.query_rows, dim_, dk + to);
    }
  }
  void write_keys(const AttentionTask& task, int64_t tile, int64_t keys, const float* dv,
                  const float* dk) const {
    for (int64_t j = 0; j < keys; ++j) {
      const int64_t at = (sequence_begin(task) + tile + j) * kv_heads_ + task.kv_head;
      write_row(dv + j * dim_, 1, elements<BFloat16>(a_.dv) + at * dim_);
      write_row(dk + j * dim_, a_.scale, elements<BFloat16>(a_.dk) + at * dim_);
    }
  }
  /// A group's gradient of scores with a tile, to the block's dq.
  void add_to_queries(const Scratch& s, int64_t g) const {
    split_transposed(s.dscores, s.ds_rows);
    add_product<Unit>(s.ds_rows, s.key_pairs, dim_, s.first + g * kUnitRows * dim_);
  }
  void write_queries(const Block& block, const Scratch& s) const {
    for (int64_t r = 0; r < block.count; ++r)
      write_row(s.first + r * dim_, a_.scale, elements<BFloat16>(a_.dq) + block.at[r] * dim_);
  }

  void clear(float* panel) const {
    __builtin_memset(panel, 0, static_cast<size_t>(kRows * dim_) * sizeof(float));
  }

  Block load_block(const AttentionTask& task, int64_t begin, const Scratch& s) const {
    Block block;
    block.count = smaller(kRows, tokens(task) * group_ - begin);
    for (auto& g : block.group) g = typename Block::Group{VecI{} - 1, Vec{}, Vec{}};
    const BFloat16 *query[kRows] = {}, *dout[kRows] = {};
    for (int64_t r = 0; r < block.count; ++r) {
      const int64_t token = (begin + r) / group_;
      block.at[r] =
          (sequence_begin(task) + token) * heads_ + task.kv_head * group_ + (begin + r) % group_;
      const int64_t at = block.at[r] * dim_;
      const BFloat16* const out = elements<BFloat16>(a_.out) + at;
      query[r] = elements<BFloat16>(a_.q) + at;
      dout[r] = elements<BFloat16>(a_.dout) + at;
      Block::Group& group = block.group[r / kUnitRows];
      const int64_t lane = r % kUnitRows;
      group.token[lane] = static_cast<int32_t>(token);
      group.lse[lane] = elements<float>(a_.lse)[block.at[r]];
      group.delta[lane] = sum_over(dim_, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
        return load(out + i, count) * load(dout[r] + i, count);
      });
    }
    for (int64_t g = 0; g < kGroups; ++g) {
      transpose_pairs(query + g * kUnitRows, dim_, s.query + g * kUnitRows * dim_ / 2);
      transpose_pairs(dout + g * kUnitRows, dim_, s.dout + g * kUnitRows * dim_ / 2);
    }
    for (int j = 0; j < kPairs; ++j) {
      pair_rows(query[2 * j], query[2 * j + 1], dim_, s.query_rows + j * dim_);
      pair_rows(dout[2 * j], dout[2 * j + 1], dim_, s.dout_rows + j * dim_);
    }
    return block;
  }

  /// Loads keys and values; returns how many there are.
  int64_t load_tile(const AttentionTask& task, int64_t tile, const Scratch& s) const {
    const int64_t count = smaller(kKeys, tokens(task) - tile);
    const BFloat16 *keys[kKeys] = {}, *values[kKeys] = {};
    for (int64_t j = 0; j < count; ++j) {
      const int64_t at = ((sequence_begin(task) + tile + j) * kv_heads_ + task.kv_head) * dim_;
      keys[j] = elements<BFloat16>(a_.k) + at;
      values[j] = elements<BFloat16>(a_.v) + at;
    }
    copy_rows(keys, dim_, s.keys);
    copy_rows(values, dim_, s.values);
    for (int j = 0; j < kPairs; ++j)
      pair_rows(keys[2 * j], keys[2 * j + 1], dim_, s.key_pairs + j * dim_);
    return count;
  }

  /// Probabilities and (unscaled) gradients of the scores, of 16 rows and a tile's keys.
  void score(int64_t tile, const Scratch& s, const Block& block, int64_t g) const {
    const int64_t at = g * kUnitRows * dim_ / 2;
    multiply_group<Unit>(s.keys, s.query + at, dim_, s.scores);
    multiply_group<Unit>(s.values, s.dout + at, dim_, s.dscores);
    const Block::Group& group = block.group[g];
    const VecI visible = group.token + (1 - static_cast<int32_t>(tile));
    for (int32_t j = 0; j < kKeys; ++j) {
      float* const p = s.scores + j * kUnitRows;
      float* const ds = s.dscores + j * kUnitRows;
      const Vec e = vexp(load(p) * a_.scale - group.lse);
      const Vec probability = visible > j ? e : Vec{};
      store(p, probability);
      store(ds, probability * (load(ds) - group.delta));
    }
  }

  /// Columns 16·g … of a left operand whose rows are keys.
  static void split_group(const float* from, int64_t g, Halves to) {
    for (int64_t j = 0; j < kKeys; ++j) {
      const SplitVec x = split_in_two(load(from + j * kUnitRows));
      const VecH high = narrowed(x.high);
      const VecH low = narrowed(x.low);
      __builtin_memcpy(to.high + j * kRows + g * kUnitRows, &high, sizeof high);
      __builtin_memcpy(to.low + j * kRows + g * kUnitRows, &low, sizeof low);
    }
  }

  void write_row(const float* from, float scale, BFloat16* to) const {
    for (int64_t d = 0; d < dim_; d += kWidth) store(to + d, load(from + d) * scale);
  }

  const AttentionBackwardArgs& a_;
  int64_t heads_, dim_, kv_heads_;
  int64_t group_;  // query heads of one key head
};

template <class Unit>
void run_all(Exec& exec, const AttentionBackwardArgs& args) {
  const Backward<Unit> backward(args);
  const int64_t sequences = args.query_begin.elements() - 1;
  const int64_t kv_heads = extent(args.k, 1), heads = extent(args.q, 1);
  auto* const lists = reinterpret_cast<int32_t*>(exec.workspace.data());
  const auto* const query_begin = elements<int32_t>(args.query_begin);
  AttentionTasks tasks(lists, query_begin, sequences);
  int64_t work = 0, longest = 0;
  for (int64_t b = 0; b < sequences; ++b) {
    work += backward.work(b);
    longest = larger(longest, backward.tokens(b));
  }
  const ThreadScratch wide = cut_scratch(exec, sequences, backward.sequence_floats(longest));
  const int most = omp_get_max_threads();
  if (wide.threads == most && sequences * kv_heads >= 2 * most) {
#pragma omp parallel num_threads(wide.threads) if (work > kSerialWork)
    {
      Unit::begin();
#pragma omp for schedule(dynamic)
      for (int64_t i = 0; i < sequences * kv_heads; ++i)
        backward.run_sequence({i / kv_heads, i % kv_heads, 0},
                              wide.base + omp_get_thread_num() * wide.floats);
      Unit::end();
    }
    return;
  }
  const ThreadScratch scratch = cut_scratch(exec, sequences, Scratch::floats(backward.dim()));
  for (const bool keys : {true, false}) {
    keys ? tasks.cut(1, kKeys, kv_heads) : tasks.cut(heads / kv_heads, kRows, kv_heads);
    const int64_t count = tasks.count();
#pragma omp parallel num_threads(scratch.threads) if (work > kSerialWork)
    {
      Unit::begin();
      float* const mine = scratch.base + omp_get_thread_num() * scratch.floats;
#pragma omp for schedule(dynamic)
      for (int64_t i = 0; i < count; ++i)  // the longest first: first keys, then last queries
        keys ? backward.run_keys(tasks.at(i), mine)
             : backward.run_queries(tasks.at(count - 1 - i), mine);
      Unit::end();
    }
  }
}

}  // namespace

void unit_attention_backward(Exec& exec, const AttentionBackwardArgs& args) {
  if (emulate_amx()) return run_all<EmulatedUnit>(exec, args);
  run_all<AmxUnit>(exec, args);
}

}  // namespace miles::MILES_ISA

#endif
