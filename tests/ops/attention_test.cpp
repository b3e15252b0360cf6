#include "ops/attention.h"

#include <numeric>

#include "ops/cpu/gemm.h"
#include "tests/ops/op_test.h"

namespace miles::test {
namespace {

/// Extents of a packed batch; every sequence brings all its tokens.
struct Extents {
  int64_t heads, kv_heads, dim;
  std::vector<int32_t> lengths;
  int64_t tokens() const { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }
  int64_t sequences() const { return static_cast<int64_t>(lengths.size()); }
  float scale() const { return 1 / std::sqrt(static_cast<float>(dim)); }
  Values<int32_t> contexts() const { return {lengths.begin(), lengths.end()}; }
  Values<int32_t> begins() const {
    Values<int32_t> begins = {0};
    for (const int32_t length : lengths) begins.push_back(begins.back() + length);
    return begins;
  }
};

/// The definition, in f64, of packed sequences.
struct Reference {
  std::vector<double> out, lse;
  std::vector<double> spread;  // Σ weight · |v| of each element of out
};
Reference reference(const Extents& e, const std::vector<double>& q, const std::vector<double>& k,
                    const std::vector<double>& v) {
  Reference r = {std::vector<double>(q.size()), {}, std::vector<double>(q.size())};
  const auto begins = e.begins();
  for (size_t b = 0; b < e.lengths.size(); ++b)
    for (int64_t n = begins[b]; n < begins[b + 1]; ++n)
      for (int64_t h = 0; h < e.heads; ++h) {
        const int64_t kv = h / (e.heads / e.kv_heads);
        std::vector<double> weights;
        double sum = 0;
        for (int64_t j = begins[b]; j <= n; ++j) {
          double score = 0;
          for (int64_t d = 0; d < e.dim; ++d)
            score += q[static_cast<size_t>((n * e.heads + h) * e.dim + d)] *
                     k[static_cast<size_t>((j * e.kv_heads + kv) * e.dim + d)];
          weights.push_back(std::exp(score * double{e.scale()}));
          sum += weights.back();
        }
        r.lse.push_back(std::log(sum));
        for (int64_t j = begins[b]; j <= n; ++j)
          for (int64_t d = 0; d < e.dim; ++d) {
            const auto at = static_cast<size_t>((n * e.heads + h) * e.dim + d);
            const double part = weights[static_cast<size_t>(j - begins[b])] / sum *
                                v[static_cast<size_t>((j * e.kv_heads + kv) * e.dim + d)];
            r.out[at] += part;
            r.spread[at] += std::abs(part);
          }
      }
  return r;
}

/// A gradient, and by how much each element changes, at most, when what it is summed from changes by
/// its own size.
struct Gradient {
  explicit Gradient(size_t size) : value(size), spread(size) {}
  std::vector<double> value, spread;
};
struct ReferenceGradients {
  Gradient dq, dk, dv;
};

/// The definition's derivative, in f64: dv = Pᵀ·dout; with dP = dout·vᵀ and D = rowsum(dout ∘ out),
/// dS = P ∘ (dP − D), dq = scale·dS·k and dk = scale·dSᵀ·q.
ReferenceGradients reference_gradients(const Extents& e, const std::vector<double>& q,
                                       const std::vector<double>& k, const std::vector<double>& v,
                                       const std::vector<double>& dout) {
  const Reference forward = reference(e, q, k, v);
  ReferenceGradients r = {Gradient(q.size()), Gradient(k.size()), Gradient(v.size())};
  const auto begins = e.begins();
  const auto row = [&](int64_t token, int64_t head, int64_t heads) {
    return static_cast<size_t>((token * heads + head) * e.dim);
  };
  const auto size = static_cast<size_t>(e.dim);
  for (size_t b = 0; b < e.lengths.size(); ++b)
    for (int64_t n = begins[b]; n < begins[b + 1]; ++n)
      for (int64_t h = 0; h < e.heads; ++h) {
        const int64_t kv = h / (e.heads / e.kv_heads);
        const size_t at = row(n, h, e.heads);
        double delta = 0, delta_spread = 0;
        for (size_t d = 0; d < size; ++d) {
          delta += dout[at + d] * forward.out[at + d];
          delta_spread += std::abs(dout[at + d]) * forward.spread[at + d];
        }
        for (int64_t j = begins[b]; j <= n; ++j) {
          const size_t key = row(j, kv, e.kv_heads);
          double score = 0, dp = 0;
          for (size_t d = 0; d < size; ++d) {
            score += q[at + d] * k[key + d];
            dp += dout[at + d] * v[key + d];
          }
          const double p = std::exp(score * double{e.scale()} -
                                    forward.lse[static_cast<size_t>(n * e.heads + h)]);
          const double ds = p * (dp - delta) * double{e.scale()};
          const double ds_spread = std::abs(ds) + 2 * p * delta_spread * double{e.scale()};
          for (size_t d = 0; d < size; ++d) {
            r.dq.value[at + d] += ds * k[key + d];
            r.dq.spread[at + d] += ds_spread * std::abs(k[key + d]);
            r.dk.value[key + d] += ds * q[at + d];
            r.dk.spread[key + d] += ds_spread * std::abs(q[at + d]);
            r.dv.value[key + d] += p * dout[at + d];
            r.dv.spread[key + d] += p * std::abs(dout[at + d]);
          }
        }
      }
  return r;
}

template <class T>
struct Result {
  Values<T> out;
  Values<float> lse;
};

/// Samples of one prompt: keys of the prompt, and how many each has after it, at least its query's.
struct Samples {
  int32_t prompt;
  std::vector<int32_t> own;
};

/// From how many blocks on CUDA reads shared keys once; ends with the scope.
class BlocksAtOnce {
 public:
  explicit BlocksAtOnce(int64_t blocks) {
    ::setenv("MILES_CUDA_BLOCKS_AT_ONCE", std::to_string(blocks).c_str(), 1);
  }
  ~BlocksAtOnce() { ::unsetenv("MILES_CUDA_BLOCKS_AT_ONCE"); }
};

/// A storage type, and where heads of it are multiplied.
template <class T>
struct Vectors {
  using Storage = T;
  static constexpr bool kEmulatesAmx = false;
};
/// What AMX computes, on any machine: heads of a multiple of 32 elements.
struct Amx : Vectors<BFloat16> {
  static constexpr bool kEmulatesAmx = true;
};

template <class Case>
class Attention : public ::testing::Test {
 protected:
  using T = typename Case::Storage;
  Attention() { set_emulate_amx(Case::kEmulatesAmx); }
  ~Attention() override { set_emulate_amx(false); }
  void SetUp() override {
    if (Case::kEmulatesAmx) MILES_CPU_ONLY();
  }

  void make(const Extents& e) {
    e_ = e;
    q_ = normals<T>(e.tokens() * e.heads * e.dim, 1, 1.5F);
    k_ = normals<T>(e.tokens() * e.kv_heads * e.dim, 2, 1.5F);
    v_ = normals<T>(e.tokens() * e.kv_heads * e.dim, 3);
  }

  /// Queries [first, first + count) of sequence b alone, against packed keys.
  Result<T> run_rows(int64_t b, int64_t first, int64_t count) {
    const auto begins = e_.begins();
    const int64_t row = begins[static_cast<size_t>(b)] + first;
    auto q = rows_of(q_, e_.heads * e_.dim, row, count);
    Values<int32_t> query_begin = {0, static_cast<int32_t>(count)};
    Values<int32_t> context = {static_cast<int32_t>(first + count)};
    Values<int32_t> kv_begin = {begins[static_cast<size_t>(b)]};
    return call(q, query_begin, context,
                {.k = k_, .v = v_, .page_table = {}, .kv_begin = kv_begin, .page_size = 0});
  }

  /// All sequences at once, packed.
  Result<T> run_packed() {
    auto begins = e_.begins();
    auto kv_begin = begins;
    kv_begin.pop_back();
    return call(q_, begins, e_.contexts(),
                {.k = k_, .v = v_, .page_table = {}, .kv_begin = kv_begin, .page_size = 0});
  }

  /// All sequences at once, keys and values scattered over shuffled pages; unused slots are NaN.
  Result<T> run_paged(int64_t page_size) {
    int64_t longest = 0, pages = 3;
    for (const int32_t length : e_.lengths) longest = std::max<int64_t>(longest, length);
    const int64_t per_sequence = (longest + page_size - 1) / page_size;
    pages += per_sequence * e_.sequences();
    const auto order = permutation(pages, 17, static_cast<uint64_t>(page_size));
    const int64_t row = e_.kv_heads * e_.dim;
    Keys keys = {Values<T>(static_cast<size_t>(pages * page_size * row), from_float<T>(NAN)),
                 {},
                 {},
                 {},
                 static_cast<int>(page_size)};
    keys.v = keys.k;
    const auto begins = e_.begins();
    for (int64_t b = 0; b < e_.sequences(); ++b)
      for (int64_t page = 0; page < per_sequence; ++page) {
        const int64_t at = order[static_cast<size_t>(b * per_sequence + page)];
        keys.page_table.push_back(static_cast<int32_t>(at));
        for (int64_t i = 0; i < page_size; ++i) {
          const int64_t key = page * page_size + i;
          if (key >= e_.lengths[static_cast<size_t>(b)]) continue;
          const int64_t from = (begins[static_cast<size_t>(b)] + key) * row;
          std::copy_n(k_.begin() + from, row, keys.k.begin() + (at * page_size + i) * row);
          std::copy_n(v_.begin() + from, row, keys.v.begin() + (at * page_size + i) * row);
        }
      }
    return call(q_, e_.begins(), e_.contexts(), keys);
  }

  struct Keys {
    Values<T> k, v;
    Values<int32_t> page_table, kv_begin;
    int page_size;
    Values<int32_t> shared_runs = {}, shared_keys = {};
  };

  /// Decoding groups, neighbours in the batch, on shuffled pages whose unused slots are NaN; the
  /// whole pages of a prompt are shared, as the hint says.
  struct Decode {
    Values<T> q = {};
    Values<int32_t> query_begin = {0}, context = {};
    Keys keys;
    std::vector<std::vector<int64_t>> own = {};  // [B] slots that a sequence has for itself
  };
  Decode make_decode(const Extents& e, const std::vector<Samples>& groups, int64_t page_size) {
    e_ = e;
    int64_t longest = 0, pages = 3;
    for (const Samples& group : groups)
      for (const int32_t own : group.own) {
        longest = std::max<int64_t>(longest, (group.prompt + own + page_size - 1) / page_size);
        pages += (group.prompt + own + page_size - 1) / page_size;
      }
    const auto order = permutation(pages, 17, static_cast<uint64_t>(page_size));
    const int64_t row = e.kv_heads * e.dim;
    const Values<T> k = normals<T>(pages * page_size * row, 2, 1.5F);
    const Values<T> v = normals<T>(pages * page_size * row, 3);
    Decode d{.keys = {Values<T>(k.size(), from_float<T>(NAN)),
                      Values<T>(k.size(), from_float<T>(NAN)),
                      {},
                      {},
                      static_cast<int>(page_size)}};
    const auto fill = [&](int64_t slot) {
      std::copy_n(k.begin() + slot * row, row, d.keys.k.begin() + slot * row);
      std::copy_n(v.begin() + slot * row, row, d.keys.v.begin() + slot * row);
    };
    size_t next = 0;
    for (const Samples& group : groups) {
      const int64_t common = group.own.size() > 1 ? group.prompt / page_size : 0;
      std::vector<int32_t> prompt;  // pages
      for (int64_t page = 0; page < common; ++page) {
        prompt.push_back(static_cast<int32_t>(order[next++]));
        for (int64_t i = 0; i < page_size; ++i) fill(prompt.back() * page_size + i);
      }
      for (size_t i = 0; i < group.own.size(); ++i) {
        const auto first = static_cast<int32_t>(d.context.size());
        const auto in_run = static_cast<int32_t>(i % kAttentionRun);
        if (in_run == 0) d.keys.shared_runs.insert(d.keys.shared_runs.end(), {first, 0});
        d.keys.shared_runs.back() = in_run + 1;
        d.keys.shared_keys.push_back(static_cast<int32_t>(common * page_size));
        d.query_begin.push_back(first + 1);
        d.context.push_back(group.prompt + group.own[i]);
        const size_t table = d.keys.page_table.size();
        d.keys.page_table.insert(d.keys.page_table.end(), prompt.begin(), prompt.end());
        d.own.emplace_back();
        for (int64_t key = common * page_size; key < d.context.back(); ++key) {
          if (key % page_size == 0)
            d.keys.page_table.push_back(static_cast<int32_t>(order[next++]));
          d.own.back().push_back(d.keys.page_table.back() * page_size + key % page_size);
          fill(d.own.back().back());
        }
        d.keys.page_table.resize(table + static_cast<size_t>(longest), 0);
      }
    }
    d.q = normals<T>(static_cast<int64_t>(d.context.size()) * e.heads * e.dim, 1, 1.5F);
    return d;
  }
  /// With the hint, or without.
  Result<T> run_decode(Decode d, bool shares) {
    if (!shares) d.keys.shared_runs.clear();
    return call(d.q, d.query_begin, d.context, d.keys);
  }

  struct Gradients {
    Values<T> dq, dk, dv;
    bool used_scratch = false;
  };
  /// With so many bytes of scratch, which hold NaN.
  Gradients run_backward(Values<T> dout, size_t scratch_bytes = 0) {
    Values<uint8_t> scratch(scratch_bytes, 0xFF);
    auto forward = run_packed();
    auto begins = e_.begins();
    Gradients g = {Values<T>(q_.size()), Values<T>(k_.size()), Values<T>(v_.size())};
    const auto untouched = scratch;
    const Shape queries = {e_.tokens(), e_.heads, e_.dim};
    const Shape keys = {e_.tokens(), e_.kv_heads, e_.dim};
    Exec exec = bench_.exec();
    attention_backward(exec, {.q = tensor(q_, queries),
                              .k = tensor(k_, keys),
                              .v = tensor(v_, keys),
                              .out = tensor(forward.out, queries),
                              .lse = tensor(forward.lse, {e_.tokens(), e_.heads}),
                              .dout = tensor(dout, queries),
                              .query_begin = tensor(begins),
                              .scale = e_.scale(),
                              .scratch = scratch.empty() ? Tensor() : tensor(scratch),
                              .longest = *std::max_element(e_.lengths.begin(), e_.lengths.end()),
                              .dq = tensor(g.dq, queries),
                              .dk = tensor(g.dk, keys),
                              .dv = tensor(g.dv, keys)});
    g.used_scratch = !same_bits(scratch, untouched);
    return g;
  }

  Result<T> call(Values<T> q, Values<int32_t> query_begin, Values<int32_t> context, Keys keys) {
    const int64_t row = e_.heads * e_.dim, tokens = static_cast<int64_t>(q.size()) / row;
    const auto sequences = static_cast<int64_t>(context.size());
    const int64_t slots = static_cast<int64_t>(keys.k.size()) / (e_.kv_heads * e_.dim);
    Result<T> r = {Values<T>(q.size()), Values<float>(static_cast<size_t>(tokens * e_.heads))};
    const bool paged = !keys.page_table.empty();
    Exec exec = bench_.exec();
    attention(
        exec,
        {.q = tensor(q, {tokens, e_.heads, e_.dim}),
         .k_pool = tensor(keys.k, {slots, e_.kv_heads, e_.dim}),
         .v_pool = tensor(keys.v, {slots, e_.kv_heads, e_.dim}),
         .query_begin = tensor(query_begin),
         .context = tensor(context),
         .page_table =
             paged ? tensor(keys.page_table,
                            {sequences, static_cast<int64_t>(keys.page_table.size()) / sequences})
                   : Tensor(),
         .kv_begin = paged ? Tensor() : tensor(keys.kv_begin),
         .page_size = keys.page_size,
         .shared_runs =
             keys.shared_runs.empty()
                 ? Tensor()
                 : tensor(keys.shared_runs, {static_cast<int64_t>(keys.shared_runs.size()) / 2, 2}),
         .shared_keys = keys.shared_runs.empty() ? Tensor() : tensor(keys.shared_keys),
         .scale = e_.scale(),
         .out = tensor(r.out, {tokens, e_.heads, e_.dim}),
         .lse = tensor(r.lse, {tokens, e_.heads})});
    return r;
  }

  OpBench bench_;
  Extents e_;
  Values<T> q_, k_, v_;
};
using Cases = ::testing::Types<Vectors<float>, Vectors<BFloat16>, Amx>;
TYPED_TEST_SUITE(Attention, Cases);

const Extents kShapes[] = {
    {.heads = 2, .kv_heads = 2, .dim = 8, .lengths = {1, 63, 64, 65}},
    {.heads = 4, .kv_heads = 2, .dim = 32, .lengths = {3, 130}},
    {.heads = 7, .kv_heads = 1, .dim = 64, .lengths = {65, 2}},
    {.heads = 2, .kv_heads = 1, .dim = 128, .lengths = {200}},
    {.heads = 1, .kv_heads = 1, .dim = 256, .lengths = {70}},
    {.heads = 3, .kv_heads = 3, .dim = 5, .lengths = {9, 67}},
};

TYPED_TEST(Attention, MatchesTheDefinitionForEveryHeadSizeAndGroup) {
  for (const Extents& e : kShapes) {
    this->make(e);
    const auto got = this->run_packed();
    const auto want = reference(e, doubles(this->q_), doubles(this->k_), doubles(this->v_));
    using T = typename TypeParam::Storage;
    // The GPU's tensor cores take weights that are rounded to T.
    const double weight = on_cuda() && sizeof(T) == 2 ? kUnit<T> : 0;
    for (size_t i = 0; i < want.out.size(); ++i)
      ASSERT_NEAR(static_cast<double>(to_float(got.out[i])), want.out[i],
                  kUnit<T> * std::abs(want.out[i]) + weight * want.spread[i] + 1e-5)
          << "out at " << i << " of dim " << e.dim;
    expect_near(got.lse, want.lse, {1e-6, 1e-5}, "lse");
  }
}

TYPED_TEST(Attention, PagesOfAnySizeInAnyOrderGiveTheSameBits) {
  for (const Extents& e : kShapes) {
    this->make(e);
    const auto packed = this->run_packed();
    for (const int64_t page_size : {1, 7, 16, 64, 100}) {
      const auto paged = this->run_paged(page_size);
      EXPECT_TRUE(same_bits(packed.out, paged.out)) << "dim " << e.dim << " page " << page_size;
      EXPECT_TRUE(same_bits(packed.lse, paged.lse)) << "dim " << e.dim << " page " << page_size;
    }
  }
}

TYPED_TEST(Attention, ATokenHasTheSameBitsAloneInChunksAndTogether) {
  for (const Extents& e : kShapes) {
    this->make(e);
    const auto together = this->run_packed();
    const auto begins = e.begins();
    for (int64_t b = 0; b < e.sequences(); ++b)
      for (const int64_t count : {1, 3, 50}) {
        const int64_t length = e.lengths[static_cast<size_t>(b)];
        for (int64_t first = 0; first < length; first += count) {
          const int64_t n = std::min(count, length - first);
          const auto alone = this->run_rows(b, first, n);
          const int64_t row = begins[static_cast<size_t>(b)] + first;
          ASSERT_TRUE(same_bits(alone.out, rows_of(together.out, e.heads * e.dim, row, n)))
              << "dim " << e.dim << " token " << first << " of " << length << ", " << n;
          ASSERT_TRUE(same_bits(alone.lse, rows_of(together.lse, e.heads, row, n)));
        }
      }
  }
}

/// Groups of 1 to 11, with prompts of no, one and several tiles, whole and not.
const std::vector<Samples> kGroups = {
    {64, {1, 64}},
    {130, {3, 1, 200}},
    {300, {65}},
    {200, {1, 2, 3, 70}},
    {40, {30, 90}},
    {128, {129, 1, 64, 63, 10}},
    {257, {5, 5, 5, 5, 5, 5}},
    {70, {1}},
    {192, {40, 1, 2, 3, 4, 5, 6}},
    {100, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
    {128, {64, 1, 100, 28, 1, 1, 190, 2}},
};
/// Query heads on two key heads: 16 rows of several sequences, of one, and of less than one.
const int64_t kRatios[] = {1, 2, 4, 5, 8, 20};

TYPED_TEST(Attention, SharedKeysGiveTheSameBits) {
  const auto check = [&](int64_t dim, int64_t ratio, int64_t page_size) {
    const auto decode = this->make_decode(
        {.heads = 2 * ratio, .kv_heads = 2, .dim = dim, .lengths = {}}, kGroups, page_size);
    const auto alone = this->run_decode(decode, false);
    const int64_t blocks = 2 * std::ssize(decode.context);
    // Always, in large blocks where there are any; just so, in small ones; and not.
    for (const int64_t at_once : {int64_t{0}, blocks - 1, blocks}) {
      const BlocksAtOnce set(at_once);
      const auto shared = this->run_decode(decode, true);
      ASSERT_TRUE(same_bits(alone.out, shared.out))
          << "dim " << dim << " ratio " << ratio << " page " << page_size << " of " << at_once;
      ASSERT_TRUE(same_bits(alone.lse, shared.lse));
    }
  };
  check(64, 4, 16);
  if (!on_cuda()) return;  // the CPU reads no hint
  for (const int64_t ratio : kRatios) {
    check(64, ratio, 16);
    check(128, ratio, 16);
  }
  for (const int64_t page_size : {1, 7, 64, 100}) check(128, 4, page_size);
  for (const int64_t dim : {5, 80, 256}) check(dim, 4, 16);
}

/// A step with prefill beside decode: on CUDA groups of up to 16 query heads decode there as ever,
/// larger ones do not.
TYPED_TEST(Attention, SharedKeysBesideAPrefillGiveTheSameBits) {
  using T = typename TypeParam::Storage;
  const BlocksAtOnce set(0);
  constexpr int32_t kMore = 20;
  for (const int64_t ratio : {4, 20}) {
    const Extents e = {.heads = 2 * ratio, .kv_heads = 2, .dim = 64, .lengths = {}};
    auto mixed = this->make_decode(e, {{130, {3, 70, 1}}, {200, {1, 2}}, {100, {30}}}, 16);
    mixed.query_begin.back() += kMore;  // the last sequence is no run, and has so many more queries
    mixed.keys.shared_runs.resize(4);
    mixed.q = normals<T>((6 + kMore) * e.heads * e.dim, 1, 1.5F);
    const auto alone = this->run_decode(mixed, false), shared = this->run_decode(mixed, true);
    EXPECT_TRUE(same_bits(alone.out, shared.out)) << ratio;
    EXPECT_TRUE(same_bits(alone.lse, shared.lse)) << ratio;
  }
}

TYPED_TEST(Attention, SharingShowsNobodyTheKeysOfAnother) {
  using T = typename TypeParam::Storage;
  const BlocksAtOnce set(0);
  const Extents e = {.heads = 8, .kv_heads = 2, .dim = 64, .lengths = {}};
  const std::vector<Samples> groups = {{130, {3, 70, 1}}, {64, {1, 2, 3, 4, 5, 6, 7, 8}}};
  const auto decode = this->make_decode(e, groups, 16);
  const auto before = this->run_decode(decode, true);
  const int64_t row = e.heads * e.dim, slot = e.kv_heads * e.dim;
  for (int64_t poisoned = 0; poisoned < std::ssize(decode.context); ++poisoned) {
    auto other = decode;
    for (const int64_t at : decode.own[static_cast<size_t>(poisoned)]) {
      std::fill_n(other.keys.k.begin() + at * slot, slot, from_float<T>(NAN));
      std::fill_n(other.keys.v.begin() + at * slot, slot, from_float<T>(NAN));
    }
    const auto after = this->run_decode(other, true);
    for (int64_t b = 0; b < std::ssize(decode.context); ++b)
      ASSERT_EQ(same_bits(rows_of(before.out, row, b, 1), rows_of(after.out, row, b, 1)),
                b != poisoned)
          << b << " when " << poisoned << " is NaN";
  }
}

TYPED_TEST(Attention, ASharedNaNReachesAllWhoShareIt) {
  using T = typename TypeParam::Storage;
  const BlocksAtOnce set(0);
  const Extents e = {.heads = 4, .kv_heads = 1, .dim = 64, .lengths = {}};
  auto decode = this->make_decode(e, {{128, {3, 70, 1}}, {64, {1, 9}}}, 16);
  const int64_t at = decode.keys.page_table[2] * 16 + 5;  // of the first group's prompt
  std::fill_n(decode.keys.v.begin() + at * e.dim, e.dim, from_float<T>(NAN));
  const auto alone = this->run_decode(decode, false), shared = this->run_decode(decode, true);
  const int64_t row = e.heads * e.dim;
  for (int64_t i = 0; i < 5 * row; ++i) {
    const auto at_i = static_cast<size_t>(i);
    ASSERT_EQ(std::isnan(to_float(shared.out[at_i])), i < 3 * row);
    ASSERT_EQ(std::isnan(to_float(alone.out[at_i])), i < 3 * row);
  }
  EXPECT_TRUE(same_bits(rows_of(alone.out, row, 3, 2), rows_of(shared.out, row, 3, 2)));
}

TYPED_TEST(Attention, RunsAndTokensOfNobodyAreInert) {
  const BlocksAtOnce set(0);
  const Extents e = {.heads = 8, .kv_heads = 2, .dim = 128, .lengths = {}};
  const auto decode = this->make_decode(e, {{130, {3, 70, 1}}, {200, {1, 2}}}, 16);
  const auto alone = this->run_decode(decode, false);
  // As a step is padded: tokens at position 0 that read page 0, and as many runs as there could be.
  auto padded = decode;
  for (int32_t b = 5; b < 9; ++b) {
    padded.query_begin.push_back(b + 1);
    padded.context.push_back(1);
    padded.keys.shared_keys.push_back(0);
  }
  padded.keys.shared_runs.resize(8, 0);
  padded.keys.page_table.resize(decode.keys.page_table.size() / 5 * 9, 0);
  padded.q.resize(decode.q.size() / 5 * 9, from_float<typename TypeParam::Storage>(1));
  const auto shared = this->run_decode(padded, true);
  EXPECT_TRUE(same_bits(alone.out, rows_of(shared.out, e.heads * e.dim, 0, 5)));
  EXPECT_TRUE(same_bits(alone.lse, rows_of(shared.lse, e.heads, 0, 5)));
}

TYPED_TEST(Attention, ALaterKeyCannotTouchAnEarlierToken) {
  using T = typename TypeParam::Storage;
  this->make({.heads = 2, .kv_heads = 1, .dim = 32, .lengths = {100}});
  const auto before = this->run_packed();
  std::fill(this->k_.begin() + 80 * 32, this->k_.end(), from_float<T>(NAN));
  std::fill(this->v_.begin() + 80 * 32, this->v_.end(), from_float<T>(NAN));
  const auto after = this->run_packed();
  EXPECT_TRUE(same_bits(rows_of(before.out, 64, 0, 80), rows_of(after.out, 64, 0, 80)));
  EXPECT_TRUE(std::isnan(to_float(after.out.back())));
}

TYPED_TEST(Attention, ThreadsLeaveNoTrace) {
  using T = typename TypeParam::Storage;
  this->make({.heads = 4, .kv_heads = 2, .dim = 32, .lengths = {150, 1, 90}});
  const auto dout = normals<T>(static_cast<int64_t>(this->q_.size()), 4);
  Result<T> forward, forward_one;
  typename TestFixture::Gradients backward, backward_one;
  with_threads(1, [&] {
    forward_one = this->run_packed();
    backward_one = this->run_backward(dout);
  });
  for (const int threads : {2, 5}) {  // with 5 the sequences are cut into smaller tasks
    with_threads(threads, [&] {
      forward = this->run_packed();
      backward = this->run_backward(dout);
    });
    EXPECT_TRUE(same_bits(forward.out, forward_one.out));
    EXPECT_TRUE(same_bits(forward.lse, forward_one.lse));
    EXPECT_TRUE(same_bits(backward.dq, backward_one.dq));
    EXPECT_TRUE(same_bits(backward.dk, backward_one.dk));
    EXPECT_TRUE(same_bits(backward.dv, backward_one.dv));
  }
}

TYPED_TEST(Attention, LargeScoresDoNotOverflow) {
  using T = typename TypeParam::Storage;
  this->make({.heads = 1, .kv_heads = 1, .dim = 8, .lengths = {70}});
  for (auto* values : {&this->q_, &this->k_})
    for (T& x : *values) x = from_float<T>(100 * to_float(x));
  for (const T x : this->run_packed().out) ASSERT_TRUE(std::isfinite(to_float(x)));
}

TYPED_TEST(Attention, BackwardIsTheDerivative) {
  using T = typename TypeParam::Storage;
  for (const Extents& e : {Extents{.heads = 2, .kv_heads = 2, .dim = 4, .lengths = {1, 5}},
                           Extents{.heads = 6, .kv_heads = 2, .dim = 3, .lengths = {7}},
                           Extents{.heads = 1, .kv_heads = 1, .dim = 2, .lengths = {67}},
                           Extents{.heads = 7, .kv_heads = 1, .dim = 2, .lengths = {2, 20}}}) {
    this->make(e);
    const auto dout = normals<T>(static_cast<int64_t>(this->q_.size()), 4);
    const auto got = this->run_backward(dout);
    const auto q = doubles(this->q_), k = doubles(this->k_), v = doubles(this->v_);
    const auto loss = [&](const std::vector<double>& x, const std::vector<double>& y,
                          const std::vector<double>& z) {
      return dot(doubles(dout), reference(e, x, y, z).out);
    };
    // The forward's output is rounded to T before rowsum(dout ∘ out) is taken from it.
    const Tolerance tolerance = {kUnit<T>, 8 * kUnit<T> + 5e-5};
    expect_near(got.dq, differences(q, [&](const auto& x) { return loss(x, k, v); }), tolerance,
                "dq");
    expect_near(got.dk, differences(k, [&](const auto& x) { return loss(q, x, v); }), tolerance,
                "dk");
    expect_near(got.dv, differences(v, [&](const auto& x) { return loss(q, k, x); }), tolerance,
                "dv");
  }
}

TYPED_TEST(Attention, BackwardMatchesTheDefinitionForEveryHeadSizeAndGroup) {
  using T = typename TypeParam::Storage;
  for (const Extents& e : kShapes) {
    this->make(e);
    const auto dout = normals<T>(static_cast<int64_t>(this->q_.size()), 4);
    const auto got = this->run_backward(dout);
    const auto want = reference_gradients(e, doubles(this->q_), doubles(this->k_),
                                          doubles(this->v_), doubles(dout));
    // Weights, gradients of scores, the forward's output and the result are rounded to T, each once at
    // most. One element may have the worst of luck in all of its terms; all together have not.
    const auto expect = [&](const Values<T>& values, const Gradient& gradient, const char* name) {
      double error = 0, whole = 0;
      for (size_t i = 0; i < gradient.value.size(); ++i) {
        error += std::pow(static_cast<double>(to_float(values[i])) - gradient.value[i], 2);
        whole += std::pow(gradient.value[i], 2);
      }
      EXPECT_LE(std::sqrt(error), std::max(2 * kUnit<T>, 1e-5) * std::sqrt(whole))
          << name << " of dim " << e.dim;
      for (size_t i = 0; i < gradient.value.size(); ++i)
        ASSERT_NEAR(static_cast<double>(to_float(values[i])), gradient.value[i],
                    kUnit<T> * (std::abs(gradient.value[i]) + gradient.spread[i]) +
                        1e-5 * (1 + gradient.spread[i]))
            << name << " at " << i << " of dim " << e.dim;
    };
    expect(got.dq, want.dq, "dq");
    expect(got.dk, want.dk, "dk");
    expect(got.dv, want.dv, "dv");
  }
}

TYPED_TEST(Attention, BackwardWithScratchGivesTheSameBits) {
  using T = typename TypeParam::Storage;
  const bool hopper = on_hopper() && sizeof(T) == 2;
  const auto check = [&](const Extents& e, size_t scratch_bytes, bool uses) {
    this->make(e);
    const auto dout = normals<T>(static_cast<int64_t>(this->q_.size()), 4);
    const auto without = this->run_backward(dout), with = this->run_backward(dout, scratch_bytes);
    EXPECT_TRUE(same_bits(without.dq, with.dq)) << e.dim << " by " << e.heads;
    EXPECT_TRUE(same_bits(without.dk, with.dk)) << e.dim << " by " << e.heads;
    EXPECT_TRUE(same_bits(without.dv, with.dv)) << e.dim << " by " << e.heads;
    EXPECT_EQ(with.used_scratch, uses && hopper) << e.dim << " by " << e.heads;
  };
  constexpr size_t kPlenty = size_t{64} << 20;
  check({.heads = 4, .kv_heads = 2, .dim = 64, .lengths = {65, 3}}, kPlenty, false);
  if (!on_cuda()) return;  // the CPU reads no hint
  for (const int64_t ratio : {1, 2, 3, 8, 20})
    check({.heads = ratio, .kv_heads = 1, .dim = 128, .lengths = {1, 64, 65, 130}}, kPlenty, true);
  check({.heads = 4, .kv_heads = 2, .dim = 128, .lengths = {400, 40}}, kPlenty, true);
  check({.heads = 6, .kv_heads = 2, .dim = 80, .lengths = {65}}, kPlenty, false);
  // Many blocks of few rows, 1.4 MB a key head: none, some at a time, all.
  const Extents many = {
      .heads = 32, .kv_heads = 8, .dim = 128, .lengths = std::vector<int32_t>(40, 3)};
  check(many, size_t{1} << 20, false);
  check(many, size_t{10} << 20, true);
  check(many, kPlenty, true);
}

TEST(AttentionChecks, HeadsThatDoNotDivideAbort) {
  OpBench bench;
  Values<float> q(3 * 4), kv(2 * 4);
  Values<int32_t> begin = {0, 1}, context = {1}, kv_begin = {0};
  Exec exec = bench.exec();
  EXPECT_DEATH(attention(exec, {.q = tensor(q, {1, 3, 4}),
                                .k_pool = tensor(kv, {1, 2, 4}),
                                .v_pool = tensor(kv, {1, 2, 4}),
                                .query_begin = tensor(begin),
                                .context = tensor(context),
                                .page_table = {},
                                .kv_begin = tensor(kv_begin),
                                .page_size = 0,
                                .scale = 1,
                                .out = tensor(q, {1, 3, 4}),
                                .lse = {}}),
               "3 query heads on 2 key heads");
}

}  // namespace
}  // namespace miles::test
