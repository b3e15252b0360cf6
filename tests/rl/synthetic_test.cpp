#include "rl/synthetic.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "base/error.h"
#include "rl/data_source.h"

namespace miles {
namespace {

std::set<std::string> texts(const std::string& path, uint64_t seed) {
  std::set<std::string> out;
  for (const Prompt& prompt : synthetic_prompts(path, seed)) out.insert(prompt.text);
  return out;
}

TEST(SyntheticAddition, LabelsAreTheSums) {
  const auto prompts = synthetic_prompts("synthetic:addition?max=1000000000&count=200", 1);
  ASSERT_EQ(prompts.size(), 200U);
  for (const Prompt& prompt : prompts) {
    const size_t plus = prompt.text.find('+');
    ASSERT_NE(plus, std::string::npos);
    EXPECT_EQ(prompt.text.back(), '=');
    const long long a = std::atoll(prompt.text.c_str());
    const long long b = std::atoll(prompt.text.c_str() + plus + 1);
    EXPECT_LE(std::max(a, b), 1000000000);
    EXPECT_EQ(prompt.label, std::to_string(a + b));
  }
}

TEST(SyntheticAddition, IsAPureFunctionOfSeedAndIndex) {
  const auto few = synthetic_prompts("synthetic:addition?count=10", 5);
  const auto many = synthetic_prompts("synthetic:addition?count=100", 5);
  for (size_t i = 0; i < few.size(); ++i) EXPECT_EQ(few[i].text, many[i].text);
  EXPECT_NE(texts("synthetic:addition?count=100", 5), texts("synthetic:addition?count=100", 6));
}

TEST(SyntheticAddition, TrainAndEvalNeverShareAPromptWhateverTheSeed) {
  for (const std::string max : {"9", "99", "120"}) {
    const auto train = texts("synthetic:addition?count=6000&max=" + max, 1);
    const auto eval = texts("synthetic:addition?split=eval&count=1500&max=" + max, 2);
    EXPECT_FALSE(eval.empty());
    for (const std::string& text : eval) EXPECT_FALSE(train.contains(text)) << text;
  }
}

TEST(SyntheticAddition, ATenthOfAllSumsIsHeldOut) {
  // All 10,000 sums up to 99: both splits are drawn often enough to see nearly every one.
  const auto eval = texts("synthetic:addition?split=eval&count=8000", 3);
  EXPECT_GT(eval.size(), 900U);
  EXPECT_LT(eval.size(), 1100U);
}

TEST(SyntheticAddition, NoiseSpoilsThatShareOfLabelsAndNoPrompt) {
  const auto clean = synthetic_prompts("synthetic:addition?count=5000", 1);
  const auto noisy = synthetic_prompts("synthetic:addition?count=5000&noise=20", 1);
  int wrong = 0;
  for (size_t i = 0; i < clean.size(); ++i) {
    EXPECT_EQ(clean[i].text, noisy[i].text);
    EXPECT_EQ(clean[i].label.size(), noisy[i].label.size());
    wrong += clean[i].label != noisy[i].label ? 1 : 0;
  }
  EXPECT_NEAR(wrong, 1000, 120);
}

TEST(SyntheticAddition, UnknownOptionsAreRefused) {
  for (const char* path :
       {"synthetic:multiplication", "synthetic:addition?maximum=9", "synthetic:addition?max=8",
        "synthetic:addition?max=", "synthetic:addition?max", "synthetic:addition?max=9x",
        "synthetic:addition?count=0", "synthetic:addition?noise=101",
        "synthetic:addition?split=test", "synthetic:"})
    EXPECT_THROW(synthetic_prompts(path, 1), Error) << path;
}

TEST(SyntheticAddition, IsADataSource) {
  DataSource source =
      DataSource::load({.path = "synthetic:addition?max=9&count=3", .shuffle = true});
  EXPECT_EQ(source.size(), 3);
  source.next();
}

}  // namespace
}  // namespace miles
