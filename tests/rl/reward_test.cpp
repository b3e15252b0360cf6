#include "rl/reward.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace miles {
namespace {

double score(RmType type, std::string_view response, std::string_view label) {
  return RuleReward({.type = type}).score(response, label).reward.value();
}

RewardResult regex(const std::string& pattern, std::string_view response,
                   std::string_view label = "") {
  return RuleReward({.type = RmType::regex, .pattern = pattern}).score(response, label);
}

TEST(RmTypes, AreFoundByName) {
  for (const RmType type : {RmType::exact, RmType::math, RmType::regex})
    EXPECT_EQ(parse_rm_type(name_of(type)), type);
  EXPECT_THROW(parse_rm_type("maths"), Error);
}

TEST(ExactReward, ComparesWithoutWhiteSpaceAtTheEnds) {
  EXPECT_EQ(score(RmType::exact, " 46\n", "46"), 1);
  EXPECT_EQ(score(RmType::exact, "4 6", "46"), 0);
  EXPECT_EQ(score(RmType::exact, "", "46"), 0);
  EXPECT_EQ(score(RmType::exact, "  ", ""), 1);
}

TEST(MathReward, TakesTheAnswerOfBothTexts) {
  EXPECT_EQ(score(RmType::math, "so she makes $18 every day.", "9*2=18\n#### 18"), 1);
  EXPECT_EQ(score(RmType::math, "19", "#### 18"), 0);
  EXPECT_EQ(score(RmType::math, "no idea", "#### 18"), 0);
  EXPECT_EQ(score(RmType::math, "18", "no number"), 0);
}

TEST(RegexReward, IsOneWhereThePatternIsFound) {
  EXPECT_EQ(regex("<answer>.*</answer>", "hm <answer>4</answer>").reward, 1);
  EXPECT_EQ(regex("^<answer>", "hm <answer>").reward, 0);
}

TEST(RegexReward, GroupOneMustBeTheLabelWhenThereIsOne) {
  const std::string pattern = "<answer>(.*?)</answer>";
  EXPECT_EQ(regex(pattern, "<answer> 4 </answer>", "4").reward, 1);
  EXPECT_EQ(regex(pattern, "<answer>5</answer>", "4").reward, 0);
  EXPECT_EQ(regex(pattern, "<answer>5</answer>", "").reward, 1);
  EXPECT_EQ(regex("<answer>", "<answer>5", "4").reward, 1);  // no group: found is enough
  EXPECT_EQ(regex("a(b)?(c)", "ac", "b").reward, 0);         // group 1 took no part
}

TEST(RegexReward, ARunawayMatchHasNoRewardButAProblem) {
  const RewardResult result = regex("(a+)+$", std::string(40, 'a') + "b");
  EXPECT_FALSE(result.reward.has_value());
  EXPECT_NE(result.problem.find("match limit"), std::string::npos) << result.problem;
}

TEST(RegexReward, InvalidUtf8DoesNotHideAMatch) {
  EXPECT_EQ(regex("(\\d+)", "\xFF\xC3 12 \xE2\x82", "12").reward, 1);
  EXPECT_EQ(regex("^.$", "é").reward, 1);  // one character, not two bytes
}

TEST(RegexReward, ABadPatternIsRefusedAtOnceNamingThePlace) {
  try {
    RuleReward({.type = RmType::regex, .pattern = "a(b"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::flags);
    EXPECT_NE(std::string(error.what()).find("at byte 3"), std::string::npos) << error.what();
  }
  EXPECT_THROW(RuleReward({.type = RmType::regex}), Error);
}

TEST(RuleReward, KnowsWhichLabelsSayNothing) {
  const RuleReward exact({.type = RmType::exact}), math({.type = RmType::math}),
      regex({.type = RmType::regex, .pattern = "(x)"});
  EXPECT_TRUE(exact.can_score("x"));
  EXPECT_FALSE(exact.can_score(" \n"));
  EXPECT_TRUE(math.can_score("so it is 3"));
  EXPECT_FALSE(math.can_score("three"));
  EXPECT_FALSE(math.can_score("3\n#### none"));
  EXPECT_TRUE(regex.can_score(""));
}

}  // namespace
}  // namespace miles
