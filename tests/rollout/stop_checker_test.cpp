#include "rollout/stop_checker.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace miles {
namespace {

class StopCheckerTest : public testing::Test {
 protected:
  /// Pushes bytes until the response ends; how many it took is in pushed_.
  std::optional<Finish> push_all(StopChecker& checker, const std::string& bytes) {
    for (const char c : bytes) {
      ++pushed_;
      if (auto finish = checker.push(static_cast<uint8_t>(c))) return finish;
    }
    return std::nullopt;
  }

  const Tokenizer tokenizer_ = Tokenizer::bytes();
  size_t pushed_ = 0;
};

TEST_F(StopCheckerTest, AStopIdEndsItAndIsNotInTheText) {
  StopChecker checker({.skip_special_tokens = false}, {257}, &tokenizer_);
  EXPECT_FALSE(push_all(checker, "abc"));
  const auto finish = checker.push(257);
  ASSERT_TRUE(finish);
  EXPECT_EQ(finish->reason, FinishReason::stop_id);
  EXPECT_EQ(finish->matched_id, 257);
  EXPECT_EQ(checker.text(), "abc");
}

TEST_F(StopCheckerTest, AStopStringEndsItWithTheTokenThatCompletesIt) {
  StopChecker checker({.stop = {"\nQ:", "zzz"}}, {}, &tokenizer_);
  const auto finish = push_all(checker, "four\n\nQ: five");
  ASSERT_TRUE(finish);
  EXPECT_EQ(finish->reason, FinishReason::stop_string);
  EXPECT_EQ(finish->matched_string, "\nQ:");
  EXPECT_EQ(pushed_, 8U);
  EXPECT_EQ(checker.text(), "four\n");
}

TEST_F(StopCheckerTest, BeforeTheFewestTokensNoStopStringEndsIt) {
  StopChecker checker({.min_new_tokens = 5, .stop = {"aa"}}, {}, &tokenizer_);
  const auto finish = push_all(checker, "aabbcaac");
  ASSERT_TRUE(finish);
  EXPECT_EQ(pushed_, 7U);
  EXPECT_EQ(checker.text(), "aabbc");
}

TEST_F(StopCheckerTest, AStopStringThatBeginsTooEarlyButEndsInTimeCounts) {
  StopChecker checker({.min_new_tokens = 4, .stop = {"aa"}}, {}, &tokenizer_);
  const auto finish = push_all(checker, "aaaaaa");
  ASSERT_TRUE(finish);
  EXPECT_EQ(pushed_, 4U);
  EXPECT_EQ(checker.text(), "aa");
}

TEST_F(StopCheckerTest, ACharacterCutByTheLimitBecomesAReplacementAndMayMakeAStopString) {
  StopChecker plain({}, {}, &tokenizer_);
  EXPECT_FALSE(push_all(plain, "a\xC3"));
  EXPECT_EQ(plain.text(), "a");
  EXPECT_FALSE(plain.flush());
  EXPECT_EQ(plain.text(), "a\xEF\xBF\xBD");

  StopChecker checker({.stop = {"\xEF\xBF\xBD"}}, {}, &tokenizer_);
  EXPECT_FALSE(push_all(checker, "a\xC3"));
  ASSERT_TRUE(checker.flush());
  EXPECT_EQ(checker.text(), "a");
}

TEST_F(StopCheckerTest, SpecialTokensAppearInTheTextOnlyWhenAskedFor) {
  StopChecker skipping({}, {}, &tokenizer_);
  StopChecker showing({.skip_special_tokens = false}, {}, &tokenizer_);
  for (StopChecker* checker : {&skipping, &showing}) {
    checker->push('a');
    checker->push(256);
    checker->push('b');
  }
  EXPECT_EQ(skipping.text(), "ab");
  EXPECT_EQ(showing.text(), "a<bos>b");
}

TEST_F(StopCheckerTest, WithoutATokenizerThereAreStopIdsButNoStopStrings) {
  StopChecker checker({}, {3}, nullptr);
  EXPECT_FALSE(checker.push(2));
  EXPECT_TRUE(checker.push(3));
  EXPECT_EQ(checker.text(), "");
  EXPECT_THROW(StopChecker({.stop = {"x"}}, {}, nullptr), Error);
}

}  // namespace
}  // namespace miles
