#include "ops/log_prob.h"

#include <limits>

#include "tests/ops/op_test.h"

namespace miles::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Scores {
  double log_prob, lse, entropy;
};

Scores reference(const std::vector<double>& logits, size_t target, double scale) {
  double max = -kInfinity, sum = 0, weighted = 0;
  for (const double x : logits) max = std::max(max, x * scale);
  for (const double x : logits) sum += std::exp(x * scale - max);
  const double lse = max + std::log(sum);
  for (const double x : logits) {
    const double p = std::exp(x * scale - lse);
    if (p > 0) weighted += p * x * scale;
  }
  return {logits[target] * scale - lse, lse, lse - weighted};
}

class LogProb : public ::testing::Test {
 protected:
  struct Batch {
    int64_t rows, vocab;
    Values<float> logits;
    Values<int32_t> targets;
    Values<float> inverse_temperature;
  };
  struct Result {
    Values<float> log_prob, lse, entropy;
  };
  static Batch batch(int64_t rows, int64_t vocab) {
    Batch b = {rows, vocab, normals<float>(rows * vocab, 1, 4), {}, {}};
    for (int64_t n = 0; n < rows; ++n) {
      b.targets.push_back(static_cast<int32_t>((n * 7919 + vocab - 1) % vocab));
      b.inverse_temperature.push_back(1 / (0.5F + 0.25F * static_cast<float>(n % 5)));
    }
    return b;
  }
  static Batch row_of(const Batch& b, int64_t row) {
    return {1, b.vocab, rows_of(b.logits, b.vocab, row, 1), rows_of(b.targets, 1, row, 1),
            rows_of(b.inverse_temperature, 1, row, 1)};
  }
  Result run(Batch b) {
    const auto n = static_cast<size_t>(b.rows);
    Result r = {Values<float>(n), Values<float>(n), Values<float>(n)};
    Exec exec = bench_.exec();
    log_prob(exec, {.logits = tensor(b.logits, {b.rows, b.vocab}),
                    .targets = tensor(b.targets),
                    .inverse_temperature = tensor(b.inverse_temperature),
                    .log_prob = tensor(r.log_prob),
                    .lse = tensor(r.lse),
                    .entropy = tensor(r.entropy)});
    return r;
  }
  template <class T>
  Values<T> run_backward(Batch b, Result forward, Values<float> d_log_prob,
                         Values<float> d_entropy) {
    Values<T> dlogits(b.logits.size());
    Exec exec = bench_.exec();
    log_prob_backward(exec, {.logits = tensor(b.logits, {b.rows, b.vocab}),
                             .targets = tensor(b.targets),
                             .inverse_temperature = tensor(b.inverse_temperature),
                             .lse = tensor(forward.lse),
                             .entropy = tensor(forward.entropy),
                             .d_log_prob = tensor(d_log_prob),
                             .d_entropy = tensor(d_entropy),
                             .dlogits = tensor(dlogits, {b.rows, b.vocab})});
    return dlogits;
  }
  OpBench bench_;
};

TEST_F(LogProb, MatchesTheDefinitionAtEveryVocabulary) {
  for (const int64_t vocab : {1, 3, 64, 512, 1023, 1024, 1025, 4099, 20000}) {
    const auto b = batch(5, vocab);
    const auto got = run(b);
    for (size_t n = 0; n < 5; ++n) {
      const auto want = reference(doubles(rows_of(b.logits, vocab, static_cast<int64_t>(n), 1)),
                                  static_cast<size_t>(b.targets[n]),
                                  static_cast<double>(b.inverse_temperature[n]));
      // |z| is up to about 40: a few roundings of that, and of a sum of e^z relative to 1.
      EXPECT_NEAR(got.log_prob[n], want.log_prob, 2e-5) << vocab;
      EXPECT_NEAR(got.lse[n], want.lse, 2e-5) << vocab;
      EXPECT_NEAR(got.entropy[n], want.entropy, 2e-5) << vocab;
    }
  }
}

TEST_F(LogProb, ARowsBitsDependOnTheRowAlone) {
  const auto b = batch(70, 5003);  // alone a row is cut into tasks
  Result one, two;
  with_threads(1, [&] { one = run(b); });
  with_threads(2, [&] { two = run(b); });
  EXPECT_TRUE(same_bits(one.log_prob, two.log_prob));
  EXPECT_TRUE(same_bits(one.entropy, two.entropy));
  for (const int64_t row : {0, 16, 32}) {
    const auto alone = run(row_of(b, row));
    EXPECT_TRUE(same_bits(alone.log_prob, rows_of(one.log_prob, 1, row, 1)));
    EXPECT_TRUE(same_bits(alone.lse, rows_of(one.lse, 1, row, 1)));
    EXPECT_TRUE(same_bits(alone.entropy, rows_of(one.entropy, 1, row, 1)));
  }
}

TEST_F(LogProb, MoreRowsThanTheWorkspaceHoldsGiveTheSameBits) {
  const auto few = run(batch(5, 2));
  const int64_t rows = kWorkspaceBytes / 12 + 5;  // twelve bytes a row and tile
  Batch b = {rows, 2, {}, {}, {}};
  const auto pattern = batch(5, 2);
  for (int64_t n = 0; n < rows; ++n) {
    const auto i = static_cast<size_t>(n % 5);
    b.logits.insert(b.logits.end(), {pattern.logits[2 * i], pattern.logits[2 * i + 1]});
    b.targets.push_back(pattern.targets[i]);
    b.inverse_temperature.push_back(pattern.inverse_temperature[i]);
  }
  const auto got = run(b);
  for (int64_t n = 0; n < rows; ++n)
    ASSERT_EQ(got.log_prob[static_cast<size_t>(n)], few.log_prob[static_cast<size_t>(n % 5)]) << n;
}

TEST_F(LogProb, AnImpossibleTokenHasMinusInfinityAndAddsNoEntropy) {
  Batch b = {2, 4, {0, -kInfinity, 1, 2, 0, -kInfinity, 1, 2}, {1, 3}, {1, 1}};
  const auto got = run(b);
  EXPECT_EQ(got.log_prob[0], -kInfinity);
  const auto want = reference({0, 1, 2}, 2, 1);
  EXPECT_NEAR(got.log_prob[1], want.log_prob, 1e-6);
  EXPECT_NEAR(got.entropy[1], want.entropy, 1e-6);
  const auto d = run_backward<float>(b, got, {0, 1}, {1, 1});
  for (const float value : d) EXPECT_TRUE(std::isfinite(value));
  EXPECT_EQ(d[5], 0.0F);
}

TEST_F(LogProb, NaNShows) {
  Batch b = {1, 3, {0, std::numeric_limits<float>::quiet_NaN(), 1}, {0}, {1}};
  EXPECT_TRUE(std::isnan(run(b).log_prob[0]));
}

TEST_F(LogProb, BackwardIsTheDerivative) {
  for (const int64_t vocab : {1, 3, 64, 172, 1100}) {
    const auto b = batch(2, vocab);
    const auto forward = run(b);
    const Values<float> d_log_prob = {0.7F, -1.3F}, d_entropy = {-0.4F, 0.9F};
    const auto want = differences(doubles(b.logits), [&](const std::vector<double>& v) {
      double loss = 0;
      for (size_t n = 0; n < 2; ++n) {
        const auto begin = v.begin() + static_cast<int64_t>(n) * vocab;
        const auto s = reference({begin, begin + vocab}, static_cast<size_t>(b.targets[n]),
                                 static_cast<double>(b.inverse_temperature[n]));
        loss += double{d_log_prob[n]} * s.log_prob + double{d_entropy[n]} * s.entropy;
      }
      return loss;
    });
    expect_near(run_backward<float>(b, forward, d_log_prob, d_entropy), want, {1e-5, 5e-5}, "f32");
    expect_near(run_backward<BFloat16>(b, forward, d_log_prob, d_entropy), want,
                {kUnit<BFloat16>, 5e-5}, "bf16");
  }
}

/// On a GPU several blocks a row; by the derivative as it is written down.
TEST_F(LogProb, BackwardOfLargeVocabularies) {
  for (const int64_t vocab : {5003, 5008}) {
    const auto b = batch(3, vocab);
    const auto forward = run(b);
    const Values<float> d_log_prob = {0.7F, -1.3F, 0}, d_entropy = {-0.4F, 0.9F, 2};
    std::vector<double> want;
    for (size_t n = 0; n < 3; ++n) {
      const auto logits = doubles(rows_of(b.logits, vocab, static_cast<int64_t>(n), 1));
      const double scale = double{b.inverse_temperature[n]};
      const auto target = static_cast<size_t>(b.targets[n]);
      const Scores s = reference(logits, target, scale);
      for (size_t v = 0; v < logits.size(); ++v) {
        const double log_p = logits[v] * scale - s.lse, p = std::exp(log_p);
        want.push_back(scale * (double{d_log_prob[n]} * ((v == target ? 1 : 0) - p) -
                                double{d_entropy[n]} * p * (log_p + s.entropy)));
      }
    }
    expect_near(run_backward<float>(b, forward, d_log_prob, d_entropy), want, {1e-5, 5e-5}, "f32");
    expect_near(run_backward<BFloat16>(b, forward, d_log_prob, d_entropy), want,
                {kUnit<BFloat16>, 5e-5}, "bf16");
  }
}

TEST_F(LogProb, WhereRowsLieChangesNoBit) {
  const int64_t vocab = 20000;
  auto b = batch(3, vocab);
  auto want = run(b);
  const Values<float> zeros(3);
  Displaced<float> logits(b.logits), log_prob(zeros), lse(zeros), entropy(zeros);
  Exec exec = bench_.exec();
  miles::log_prob(exec, {.logits = logits.tensor({3, vocab}),
                         .targets = tensor(b.targets),
                         .inverse_temperature = tensor(b.inverse_temperature),
                         .log_prob = log_prob.tensor(),
                         .lse = lse.tensor(),
                         .entropy = entropy.tensor()});
  EXPECT_TRUE(same_bits(log_prob.values(), want.log_prob));
  EXPECT_TRUE(same_bits(lse.values(), want.lse));
  EXPECT_TRUE(same_bits(entropy.values(), want.entropy));
  Values<float> d_log_prob = {0.7F, -1.3F, 0}, d_entropy = {-0.4F, 0.9F, 2};
  log_prob_backward(exec, {.logits = logits.tensor({3, vocab}),
                           .targets = tensor(b.targets),
                           .inverse_temperature = tensor(b.inverse_temperature),
                           .lse = tensor(want.lse),
                           .entropy = tensor(want.entropy),
                           .d_log_prob = tensor(d_log_prob),
                           .d_entropy = tensor(d_entropy),
                           .dlogits = logits.tensor({3, vocab})});
  EXPECT_TRUE(same_bits(logits.values(), run_backward<float>(b, want, d_log_prob, d_entropy)));
}

/// A draw that failed is no token.
TEST_F(LogProb, ATargetThatIsNoTokenGivesNaN) {
  Batch b = batch(3, 70);
  const auto want = run(b);
  b.targets[0] = -1;
  b.targets[2] = 70;
  const auto got = run(b);
  EXPECT_TRUE(std::isnan(got.log_prob[0]));
  EXPECT_EQ(got.log_prob[1], want.log_prob[1]);
  EXPECT_TRUE(std::isnan(got.log_prob[2]));
  EXPECT_TRUE(same_bits(got.lse, want.lse));
  EXPECT_TRUE(same_bits(got.entropy, want.entropy));
}

TEST_F(LogProb, BackwardMayOverwriteTheLogits) {
  auto b = batch(9, 2500);
  auto forward = run(b);
  Values<float> d_log_prob = normals<float>(9, 2), d_entropy = normals<float>(9, 3);
  const auto want = run_backward<float>(b, forward, d_log_prob, d_entropy);
  Exec exec = bench_.exec();
  log_prob_backward(exec, {.logits = tensor(b.logits, {9, 2500}),
                           .targets = tensor(b.targets),
                           .inverse_temperature = tensor(b.inverse_temperature),
                           .lse = tensor(forward.lse),
                           .entropy = tensor(forward.entropy),
                           .d_log_prob = tensor(d_log_prob),
                           .d_entropy = tensor(d_entropy),
                           .dlogits = tensor(b.logits, {9, 2500})});
  EXPECT_TRUE(same_bits(b.logits, want));
}

}  // namespace
}  // namespace miles::test
