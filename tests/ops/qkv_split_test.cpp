#include "ops/qkv_split.h"

#include "tests/ops/op_test.h"

namespace miles::test {
namespace {

constexpr float kEps = 1e-6F;
constexpr int64_t kPositions = 64;

struct Heads {
  int64_t query, key, dim;
  int64_t row() const { return (query + 2 * key) * dim; }
};

Values<float> rope_table(int64_t dim) {
  Values<float> rope(static_cast<size_t>(kPositions * dim));
  for (int64_t p = 0; p < kPositions; ++p)
    for (int64_t d = 0; d < dim / 2; ++d) {
      const double angle =
          static_cast<double>(p) *
          std::pow(10000.0, -2.0 * static_cast<double>(d) / static_cast<double>(dim));
      rope[static_cast<size_t>(p * dim + d)] = static_cast<float>(std::cos(angle));
      rope[static_cast<size_t>(p * dim + dim / 2 + d)] = static_cast<float>(std::sin(angle));
    }
  return rope;
}

/// Norms and rotates in place every query and key head of [N, row] values.
std::vector<double> reference(std::vector<double> qkv, Heads heads, const Values<float>& rope,
                              const Values<int32_t>& positions, const std::vector<double>& q_norm,
                              const std::vector<double>& k_norm) {
  const auto dim = static_cast<size_t>(heads.dim), half = dim / 2;
  for (size_t n = 0; n < positions.size(); ++n)
    for (size_t h = 0; h < static_cast<size_t>(heads.query + heads.key); ++h) {
      double* const u = qkv.data() + n * static_cast<size_t>(heads.row()) + h * dim;
      const auto& w = h < static_cast<size_t>(heads.query) ? q_norm : k_norm;
      if (!w.empty()) {
        double squares = 0;
        for (size_t d = 0; d < dim; ++d) squares += u[d] * u[d];
        const double r = 1 / std::sqrt(squares / static_cast<double>(dim) + double{kEps});
        for (size_t d = 0; d < dim; ++d) u[d] *= r * w[d];
      }
      const float* const angles = rope.data() + static_cast<size_t>(positions[n]) * dim;
      for (size_t d = 0; d < half; ++d) {
        const double a = u[d], b = u[d + half], c = double{angles[d]}, s = double{angles[half + d]};
        u[d] = a * c - b * s;
        u[d + half] = b * c + a * s;
      }
    }
  return qkv;
}

/// Operands of a batch.
template <class T>
struct Batch {
  Heads heads;
  Values<T> qkv, q_norm, k_norm;
  Values<int32_t> positions, slots;
  Values<float> rope;

  Batch(int64_t tokens, Heads of, bool norms) : heads(of), rope(rope_table(of.dim)) {
    qkv = normals<T>(tokens * heads.row(), 1);
    if (norms) q_norm = normals<T>(heads.dim, 2), k_norm = normals<T>(heads.dim, 3);
    for (int64_t n = 0; n < tokens; ++n) {
      positions.push_back(static_cast<int32_t>((7 * n + 3) % kPositions));
      slots.push_back(static_cast<int32_t>(tokens - 1 - n));
    }
  }
  int64_t tokens() const { return static_cast<int64_t>(positions.size()); }
};

template <class T>
Tensor optional(Values<T>& values) {
  return values.empty() ? Tensor() : tensor(values);
}

template <class T>
class QkvSplit : public ::testing::Test {
 protected:
  /// [N, row] values as the reference lays them out, gathered from q and the pools.
  Values<T> run(Batch<T> b) {
    const auto [query, key, dim] = b.heads;
    const int64_t n = b.tokens();
    Values<T> q(static_cast<size_t>(n * query * dim));
    Values<T> k(static_cast<size_t>(n * key * dim)), v(k.size());
    Exec exec = bench_.exec();
    qkv_split(exec, {.qkv = tensor(b.qkv, {n, b.heads.row()}),
                     .q_norm = optional(b.q_norm),
                     .k_norm = optional(b.k_norm),
                     .positions = tensor(b.positions),
                     .rope = tensor(b.rope, {kPositions, dim}),
                     .slots = tensor(b.slots),
                     .q = tensor(q, {n, query, dim}),
                     .k_pool = tensor(k, {n, key, dim}),
                     .v_pool = tensor(v, {n, key, dim}),
                     .eps = kEps});
    Values<T> all;
    for (int64_t token = 0; token < n; ++token) {
      const int64_t slot = b.slots[static_cast<size_t>(token)];
      for (const auto& part : {rows_of(q, query * dim, token, 1), rows_of(k, key * dim, slot, 1),
                               rows_of(v, key * dim, slot, 1)})
        all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  struct Gradients {
    Values<T> dqkv;
    Values<float> dq_norm, dk_norm;
  };
  /// `d` is laid out as what run() returns; norm gradients start from 1.
  Gradients run_backward(Batch<T> b, const Values<T>& d) {
    const auto [query, key, dim] = b.heads;
    const int64_t n = b.tokens(), row = b.heads.row();
    Values<T> dq, dk, dv;
    for (int64_t token = 0; token < n; ++token) {
      const auto at = d.begin() + token * row;
      dq.insert(dq.end(), at, at + query * dim);
      dk.insert(dk.end(), at + query * dim, at + (query + key) * dim);
      dv.insert(dv.end(), at + (query + key) * dim, at + row);
    }
    Gradients g = {Values<T>(b.qkv.size()), Values<float>(b.q_norm.size(), 1),
                   Values<float>(b.k_norm.size(), 1)};
    Exec exec = bench_.exec();
    qkv_split_backward(exec, {.dq = tensor(dq, {n, query, dim}),
                              .dk = tensor(dk, {n, key, dim}),
                              .dv = tensor(dv, {n, key, dim}),
                              .qkv = tensor(b.qkv, {n, row}),
                              .q_norm = optional(b.q_norm),
                              .k_norm = optional(b.k_norm),
                              .positions = tensor(b.positions),
                              .rope = tensor(b.rope, {kPositions, dim}),
                              .dqkv = tensor(g.dqkv, {n, row}),
                              .dq_norm = optional(g.dq_norm),
                              .dk_norm = optional(g.dk_norm),
                              .eps = kEps});
    return g;
  }
  OpBench bench_;
};
TYPED_TEST_SUITE(QkvSplit, StorageTypes);

TYPED_TEST(QkvSplit, MatchesTheDefinitionWithAndWithoutNorms) {
  using T = TypeParam;
  for (const Heads heads : {Heads{1, 1, 2}, Heads{4, 2, 8}, Heads{7, 1, 6}, Heads{2, 2, 128}})
    for (const bool norms : {false, true}) {
      const Batch<T> b(5, heads, norms);
      const auto want = reference(doubles(b.qkv), heads, b.rope, b.positions, doubles(b.q_norm),
                                  doubles(b.k_norm));
      // Two roundings before the rotation and one after, of values up to about 8.
      expect_near(this->run(b), want, {kUnit<T> + 1e-6, norms ? 20 * kUnit<T> : 8 * 0x1p-24},
                  "heads");
    }
}

TYPED_TEST(QkvSplit, ATokensBitsDependOnTheTokenAlone) {
  using T = TypeParam;
  const Batch<T> b(41, {4, 2, 64}, true);
  Values<T> one, two;
  with_threads(1, [&] { one = this->run(b); });
  with_threads(2, [&] { two = this->run(b); });
  EXPECT_TRUE(same_bits(one, two));
  Batch<T> alone(1, b.heads, true);
  alone.qkv = rows_of(b.qkv, b.heads.row(), 29, 1);
  alone.positions = {b.positions[29]};
  EXPECT_TRUE(same_bits(this->run(alone), rows_of(one, b.heads.row(), 29, 1)));
}

/// As many as a GPU takes in turns, and in turns of turns.
TYPED_TEST(QkvSplit, ATokensBitsAreThoseItHasAloneInABatchOfThousandsToo) {
  using T = TypeParam;
  constexpr int64_t kTokens = 8700;
  const Batch<T> b(kTokens, {368, 8, 2}, true);
  const Values<T> all = this->run(b);
  for (const int64_t n : {int64_t{0}, int64_t{264}, int64_t{8447}, int64_t{8448}, kTokens - 1}) {
    Batch<T> alone(1, b.heads, true);
    alone.qkv = rows_of(b.qkv, b.heads.row(), n, 1);
    alone.positions = {b.positions[static_cast<size_t>(n)]};
    EXPECT_TRUE(same_bits(this->run(alone), rows_of(all, b.heads.row(), n, 1))) << n;
  }
}

TYPED_TEST(QkvSplit, BackwardIsTheDerivative) {
  using T = TypeParam;
  for (const auto& [heads, norms] : {std::pair{Heads{3, 1, 10}, false},
                                     {Heads{3, 1, 10}, true},
                                     {Heads{2, 1, 16}, true},
                                     {Heads{1, 2, 128}, true}}) {
    const Batch<T> b(4, heads, norms);
    const auto d = normals<T>(4 * heads.row(), 5);
    const auto got = this->run_backward(b, d);
    const auto loss = [&, of = heads](const std::vector<double>& qkv,
                                      const std::vector<double>& q_norm,
                                      const std::vector<double>& k_norm) {
      return dot(doubles(d), reference(qkv, of, b.rope, b.positions, q_norm, k_norm));
    };
    const auto qkv = doubles(b.qkv), q_norm = doubles(b.q_norm), k_norm = doubles(b.k_norm);
    expect_near(got.dqkv, differences(qkv, [&](const auto& v) { return loss(v, q_norm, k_norm); }),
                {kUnit<T>, 2e-5}, "dqkv");
    auto dq_norm = differences(q_norm, [&](const auto& v) { return loss(qkv, v, k_norm); });
    auto dk_norm = differences(k_norm, [&](const auto& v) { return loss(qkv, q_norm, v); });
    for (double& x : dq_norm) x += 1;
    for (double& x : dk_norm) x += 1;
    // Twelve (four) terms of |dy·x̂| up to about 9, each with a rounded x̂.
    expect_near(got.dq_norm, dq_norm, {0, 30 * kUnit<T> + 1e-5}, "dq_norm");
    expect_near(got.dk_norm, dk_norm, {0, 30 * kUnit<T> + 1e-5}, "dk_norm");
  }
}

TYPED_TEST(QkvSplit, BackwardHasTheSameBitsForAnyNumberOfThreads) {
  using T = TypeParam;
  const Batch<T> b(333, {4, 2, 32}, true);
  const auto d = normals<T>(333 * b.heads.row(), 5);
  typename TestFixture::Gradients one, two;
  with_threads(1, [&] { one = this->run_backward(b, d); });
  with_threads(2, [&] { two = this->run_backward(b, d); });
  EXPECT_TRUE(same_bits(one.dqkv, two.dqkv));
  EXPECT_TRUE(same_bits(one.dq_norm, two.dq_norm));
  EXPECT_TRUE(same_bits(one.dk_norm, two.dk_norm));
}

TYPED_TEST(QkvSplit, WhereHeadsLieChangesNoBit) {
  using T = TypeParam;
  for (const int64_t dim : {64, 128, 512}) {
    const int64_t n = 37;
    Batch<T> b(n, {4, 2, dim}, true);
    const auto want = this->run(b);
    auto d = normals<T>(n * b.heads.row(), 5);
    const auto want_gradients = this->run_backward(b, d);
    const Values<T> queries(static_cast<size_t>(n * 4 * dim)),
        keys(static_cast<size_t>(n * 2 * dim));
    Displaced<T> qkv(b.qkv), q_norm(b.q_norm), k_norm(b.k_norm), q(queries), k(keys), v(keys);
    Displaced<float> rope(b.rope);
    Exec exec = this->bench_.exec();
    qkv_split(exec, {.qkv = qkv.tensor({n, b.heads.row()}),
                     .q_norm = q_norm.tensor(),
                     .k_norm = k_norm.tensor(),
                     .positions = tensor(b.positions),
                     .rope = rope.tensor({kPositions, dim}),
                     .slots = tensor(b.slots),
                     .q = q.tensor({n, 4, dim}),
                     .k_pool = k.tensor({n, 2, dim}),
                     .v_pool = v.tensor({n, 2, dim}),
                     .eps = kEps});
    Values<T> dq, dk, dv, got;
    for (int64_t token = 0; token < n; ++token) {
      const int64_t slot = b.slots[static_cast<size_t>(token)];
      for (const auto& part :
           {rows_of(q.values(), 4 * dim, token, 1), rows_of(k.values(), 2 * dim, slot, 1),
            rows_of(v.values(), 2 * dim, slot, 1)})
        got.insert(got.end(), part.begin(), part.end());
      const auto at = d.begin() + token * b.heads.row();
      dq.insert(dq.end(), at, at + 4 * dim);
      dk.insert(dk.end(), at + 4 * dim, at + 6 * dim);
      dv.insert(dv.end(), at + 6 * dim, at + 8 * dim);
    }
    EXPECT_TRUE(same_bits(got, want)) << dim;
    Displaced<T> dqs(dq), dks(dk), dvs(dv), dqkv(d);
    Values<float> dq_norm(b.q_norm.size(), 1), dk_norm(b.k_norm.size(), 1);
    qkv_split_backward(exec, {.dq = dqs.tensor({n, 4, dim}),
                              .dk = dks.tensor({n, 2, dim}),
                              .dv = dvs.tensor({n, 2, dim}),
                              .qkv = qkv.tensor({n, b.heads.row()}),
                              .q_norm = q_norm.tensor(),
                              .k_norm = k_norm.tensor(),
                              .positions = tensor(b.positions),
                              .rope = rope.tensor({kPositions, dim}),
                              .dqkv = dqkv.tensor({n, b.heads.row()}),
                              .dq_norm = tensor(dq_norm),
                              .dk_norm = tensor(dk_norm),
                              .eps = kEps});
    EXPECT_TRUE(same_bits(dqkv.values(), want_gradients.dqkv)) << dim;
    EXPECT_TRUE(same_bits(dq_norm, want_gradients.dq_norm)) << dim;
    EXPECT_TRUE(same_bits(dk_norm, want_gradients.dk_norm)) << dim;
  }
}

TYPED_TEST(QkvSplit, ANegativeSlotKeepsNothing) {
  using T = TypeParam;
  Batch<T> b(3, {4, 2, 16}, true);
  b.slots = {1, -1, 0};
  Values<T> q(3 * 4 * 16), k(2 * 2 * 16, from_float<T>(9)), v(k);
  Exec exec = this->bench_.exec();
  qkv_split(exec, {.qkv = tensor(b.qkv, {3, b.heads.row()}),
                   .q_norm = tensor(b.q_norm),
                   .k_norm = tensor(b.k_norm),
                   .positions = tensor(b.positions),
                   .rope = tensor(b.rope, {kPositions, 16}),
                   .slots = tensor(b.slots),
                   .q = tensor(q, {3, 4, 16}),
                   .k_pool = tensor(k, {2, 2, 16}),
                   .v_pool = tensor(v, {2, 2, 16}),
                   .eps = kEps});
  // The two others went where they should, and the three queries are there.
  const auto value_of = [&](int64_t token) { return rows_of(b.qkv, 16, token * 8 + 6, 2); };
  EXPECT_TRUE(same_bits(rows_of(v, 32, 1, 1), value_of(0)));
  EXPECT_TRUE(same_bits(rows_of(v, 32, 0, 1), value_of(2)));
  b.slots = {1, 2, 0};
  const Values<T> kept = rows_of(this->run(b), b.heads.row(), 1, 1);
  EXPECT_TRUE(same_bits(rows_of(q, 64, 1, 1), rows_of(kept, 64, 0, 1)));
}

}  // namespace
}  // namespace miles::test
