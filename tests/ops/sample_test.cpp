#include "ops/sample.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "tests/ops/op_test.h"

namespace miles::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

Values<int32_t> draw(Values<float> logits, const std::vector<SampleRow>& rows) {
  OpBench bench;
  Exec exec = bench.exec();
  Values<int32_t> tokens(rows.size());
  Values<uint8_t> settings(rows.size() * sizeof(SampleRow));
  if (!rows.empty()) std::memcpy(settings.data(), rows.data(), settings.size());
  const auto n = static_cast<int64_t>(rows.size());
  sample(exec, {.logits = tensor(logits, {n, static_cast<int64_t>(logits.size()) / n}),
                .rows = tensor(settings),
                .tokens = tensor(tokens)});
  return tokens;
}

/// `draws` tokens from one distribution, each with a random number of `seed`'s.
Values<int32_t> draw_many(const Values<float>& logits, SampleRow row, int draws,
                          uint64_t seed = 0) {
  Values<float> all;
  std::vector<SampleRow> rows;
  for (int i = 0; i < draws; ++i) {
    all.insert(all.end(), logits.begin(), logits.end());
    row.uniform = uniform(seed, RngUse::sampling, 0, static_cast<uint64_t>(i));
    rows.push_back(row);
  }
  return draw(all, rows);
}

/// Pearson's statistic of drawn tokens against weights; tokens of weight 0 must not occur.
double chi_square(const Values<int32_t>& tokens, const std::vector<double>& weights) {
  std::vector<double> counts(weights.size());
  for (const int32_t token : tokens) counts.at(static_cast<size_t>(token)) += 1;
  double total = 0, statistic = 0;
  for (const double weight : weights) total += weight;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double expected = weights[i] / total * static_cast<double>(tokens.size());
    if (expected == 0) {
      EXPECT_EQ(counts[i], 0) << "token " << i;
    } else {
      statistic += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
  }
  return statistic;
}

constexpr float kLogits[] = {1, 0.5F, -1, 2, 0, 1.5F, -0.5F, 0.25F};

Values<float> some_logits() {
  return {std::begin(kLogits), std::end(kLogits)};
}

std::vector<double> weights_at(double temperature) {
  std::vector<double> weights;
  for (const float x : kLogits) weights.push_back(std::exp(double{x} / temperature));
  return weights;
}

/// The weights of the likeliest `keep` of kLogits; the rest 0.
std::vector<double> likeliest(size_t keep) {
  auto weights = weights_at(1);
  auto sorted = weights;
  std::sort(sorted.rbegin(), sorted.rend());
  for (double& weight : weights)
    if (weight < sorted[keep - 1]) weight = 0;
  return weights;
}

// 26.1 and 18.5: the 0.1% points of χ² with 8 − 1 (24.3, rounded up) and 5 − 1 degrees of freedom.
TEST(Sample, DrawsFollowTheSoftmaxAtEveryTemperature) {
  for (const float temperature : {0.5F, 1.0F, 2.0F})
    EXPECT_LT(chi_square(draw_many(some_logits(), {.temperature = temperature}, 20000, 5),
                         weights_at(double{temperature})),
              26.1);
}

TEST(Sample, FiltersKeepExactlyTheirSet) {
  EXPECT_LT(chi_square(draw_many(some_logits(), {.top_k = 5}, 4000, 6), likeliest(5)), 18.5);
  // The four likeliest have 0.80 of the mass, five 0.87.
  EXPECT_LT(chi_square(draw_many(some_logits(), {.top_p = 0.85F}, 4000, 7), likeliest(5)), 18.5);
  // e^(1/4 − 2) = 0.174 stays, e^(0 − 2) = 0.135 goes.
  EXPECT_LT(chi_square(draw_many(some_logits(), {.min_p = 0.15F}, 4000, 8), likeliest(5)), 18.5);
  EXPECT_LT(
      chi_square(draw_many(some_logits(), {.top_k = 7, .top_p = 0.85F, .min_p = 0.01F}, 4000, 9),
                 likeliest(5)),
      18.5);
}

TEST(Sample, TiesAtAFilterGoToTheLowerId) {
  const Values<float> flat(2000, 0.0F);
  for (const SampleRow& row : {SampleRow{.top_k = 3}, SampleRow{.top_p = 0.0014F}}) {
    const auto tokens = draw_many(flat, row, 200);
    EXPECT_EQ(std::set<int32_t>(tokens.begin(), tokens.end()), (std::set<int32_t>{0, 1, 2}));
  }
}

TEST(Sample, AtLeastTheLikeliestSurvivesAnyFilter) {
  for (const SampleRow& row :
       {SampleRow{.top_p = 0}, SampleRow{.min_p = 1}, SampleRow{.min_p = 7}, SampleRow{.top_k = 1}})
    EXPECT_EQ(draw(some_logits(), {row})[0], 3);
}

TEST(Sample, TemperatureZeroTakesTheLargestAndTheLowestIdAmongEquals) {
  Values<float> logits(5000, -3);
  logits[4321] = logits[1234] = logits[4999] = 2;
  EXPECT_EQ(draw(logits, {{.temperature = 0}})[0], 1234);
  EXPECT_EQ(draw(logits, {{.temperature = 1e-7F, .top_p = 0.5F}})[0], 1234);
  logits[7] = kNaN;
  EXPECT_EQ(draw(logits, {{.temperature = 0}})[0], 1234);
}

TEST(Sample, LargeVocabulariesAreDrawnInEveryTile) {
  const int64_t vocab = 5003;
  const Values<float> flat(static_cast<size_t>(vocab), 1);
  std::vector<double> tenths(10, 500), counted(10);
  Values<int32_t> coarse;
  for (const int32_t token : draw_many(flat, {}, 4000, 3))
    coarse.push_back(std::min(token / 500, 9));
  EXPECT_LT(chi_square(coarse, tenths), 27.9);  // 0.1% of χ² with 9 degrees of freedom
}

TEST(Sample, ADrawDependsOnNothingButItsRow) {
  const int64_t vocab = 3001;
  const auto logits = normals<float>(24 * vocab, 1, 2);
  std::vector<SampleRow> rows;
  for (uint64_t n = 0; n < 24; ++n)
    rows.push_back({.temperature = n % 4 == 0 ? 0.0F : 1.0F,
                    .top_k = n % 3 == 0 ? 50 : -1,
                    .top_p = n % 2 == 0 ? 0.9F : 1.0F,
                    .uniform = uniform(1, RngUse::sampling, n, 2 * n)});
  Values<int32_t> one, two;
  with_threads(1, [&] { one = draw(logits, rows); });
  with_threads(2, [&] { two = draw(logits, rows); });
  EXPECT_EQ(one, two);
  for (int64_t n = 0; n < 24; ++n)
    EXPECT_EQ(draw(rows_of(logits, vocab, n, 1), {rows[static_cast<size_t>(n)]})[0],
              one[static_cast<size_t>(n)]);
}

TEST(Sample, TheRandomNumberPicksByTheCumulativeDistribution) {
  const Values<float> flat(4096, 0);
  for (const float u : {0.0001F, 0.25F, 0.6F, 0.9999F})
    EXPECT_NEAR(draw(flat, {{.uniform = u}})[0], u * 4096, 1);
}

/// The token that the definition draws, in f64.
int32_t reference(const Values<float>& logits, const SampleRow& row) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](int32_t id) { return double{logits[static_cast<size_t>(id)]}; };
  const bool filtered = row.top_k > 0 || row.top_p < 1 || row.min_p > 0;
  const double max = double{*std::max_element(logits.begin(), logits.end())};
  const auto weight = [&](int32_t id) {
    return std::exp((logit(id) - max) / double{row.temperature});
  };
  if (filtered)
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
  double total = 0, kept = 0, sum = 0;
  for (const int32_t id : order) total += weight(id);
  size_t keep = 0;
  for (; keep < order.size(); ++keep) {
    const bool full = (row.top_k > 0 && keep >= static_cast<size_t>(row.top_k)) ||
                      (row.top_p < 1 && kept >= double{row.top_p} * total) ||
                      weight(order[keep]) < double{row.min_p};
    if (filtered && keep > 0 && full) break;
    kept += weight(order[keep]);
  }
  for (size_t i = 0; i < keep; ++i) {
    sum += weight(order[i]);
    if (sum > double{row.uniform} * kept) return order[i];
  }
  return order[keep - 1];
}

TEST(Sample, EveryRandomNumberPicksTheTokenThatTheDefinitionPicks) {
  for (const int64_t vocab : {7, 1024, 3001}) {
    auto logits = normals<float>(vocab, 1, 3);
    logits[5] = logits[2];  // equals, ranked by id
    std::vector<SampleRow> rows;
    for (const SampleRow& settings :
         {SampleRow{}, SampleRow{.temperature = 0.7F}, SampleRow{.top_k = 5},
          SampleRow{.temperature = 1.5F, .top_k = 40}, SampleRow{.top_p = 0.8F},
          SampleRow{.temperature = 2, .top_p = 0.99F}, SampleRow{.min_p = 0.02F},
          SampleRow{.top_k = 100, .top_p = 0.95F, .min_p = 0.001F}})
      for (uint64_t i = 0; i < 40; ++i) {
        rows.push_back(settings);
        rows.back().uniform = uniform(2, RngUse::sampling, 0, i);
      }
    Values<float> all;
    for (size_t i = 0; i < rows.size(); ++i) all.insert(all.end(), logits.begin(), logits.end());
    const auto tokens = draw(all, rows);
    for (size_t i = 0; i < rows.size(); ++i)
      EXPECT_EQ(tokens[i], reference(logits, rows[i])) << "vocabulary " << vocab << ", row " << i;
  }
}

TEST(Sample, TheLargestVocabularyIsDrawnInABatchAsAlone) {
  const int64_t vocab = int64_t{1} << 20;
  const auto logits = normals<float>(vocab, 1);
  Values<float> all;
  std::vector<SampleRow> rows;
  for (uint64_t i = 0; i < 9; ++i) {  // on a GPU the workspace has no room for nine such rows
    all.insert(all.end(), logits.begin(), logits.end());
    rows.push_back({.top_k = i == 0 ? -1 : 2000, .uniform = uniform(4, RngUse::sampling, 0, i)});
  }
  const auto tokens = draw(all, rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(draw(logits, {rows[i]})[0], tokens[i]);
    // Unfiltered tokens have a millionth each: as little as f32 sums may be off by.
    if (i > 0) {
      EXPECT_EQ(reference(logits, rows[i]), tokens[i]);
    }
  }
}

TEST(Sample, ImpossibleTokensAreNeverDrawn) {
  Values<float> logits(1500, -kInfinity);
  logits[3] = kNaN;
  logits[1100] = 0;
  logits[1499] = 0;
  for (const SampleRow& row : {SampleRow{}, SampleRow{.top_p = 0.99F}, SampleRow{.top_k = 900}})
    for (const int32_t token : draw_many(logits, row, 50))
      EXPECT_TRUE(token == 1100 || token == 1499);
}

TEST(Sample, ARowWithoutAnyPossibleTokenGivesMinusOne) {
  EXPECT_EQ(draw({-kInfinity, kNaN, -kInfinity}, {{}})[0], -1);
  EXPECT_EQ(draw({kNaN}, {{.temperature = 0}})[0], -1);
}

TEST(Sample, AnInfiniteLogitIsCertain) {
  EXPECT_EQ(draw({0, kInfinity, 3, kInfinity}, {{.top_p = 0.9F}})[0], 1);
}

}  // namespace
}  // namespace miles::test
