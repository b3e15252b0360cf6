#include "rl/reward_math.h"

#include <gtest/gtest.h>

namespace miles {
namespace {

std::string answer(std::string_view text) {
  const auto number = final_number(text);
  if (!number) return "none";
  return number->denominator == "1" ? number->decimal : number->decimal + "/" + number->denominator;
}

TEST(FinalNumber, IsTheLastOneOfTheText) {
  EXPECT_EQ(answer("3 eggs and 4 eggs make 7 eggs."), "7");
  EXPECT_EQ(answer("48/2 = 24"), "24");
  EXPECT_EQ(answer("nothing"), "none");
  EXPECT_EQ(answer(""), "none");
  EXPECT_EQ(answer("."), "none");
}

TEST(FinalNumber, ReadsTheWaysNumbersAreWritten) {
  EXPECT_EQ(answer("1,234,567.50"), "1234567.5");
  EXPECT_EQ(answer("$1,234"), "1234");
  EXPECT_EQ(answer("-$5"), "-5");
  EXPECT_EQ(answer("$-5"), "-5");
  EXPECT_EQ(answer("50%"), "50");
  EXPECT_EQ(answer("007"), "7");
  EXPECT_EQ(answer("+7"), "7");
  EXPECT_EQ(answer("-0.0"), "0");
  EXPECT_EQ(answer(".5"), "0.5");
  EXPECT_EQ(answer("x = -.50"), "-0.5");
  EXPECT_EQ(answer("\xE2\x88\x92"
                   "3"),
            "-3");
  EXPECT_EQ(answer("it is 18."), "18");
  EXPECT_EQ(answer("3/4"), "3/4");
  EXPECT_EQ(answer("-3/04"), "-3/4");
}

TEST(FinalNumber, ACommaSeparatesThousandsOnlyBeforeThreeDigits) {
  EXPECT_EQ(answer("1,2,3"), "3");
  EXPECT_EQ(answer("1,2345"), "2345");
  EXPECT_EQ(answer("1234,567"), "567");
}

TEST(FinalNumber, AMinusBetweenTwoThingsIsAnOperator) {
  EXPECT_EQ(answer("16-3"), "3");
  EXPECT_EQ(answer("x-3"), "3");
  EXPECT_EQ(answer("(4)-3"), "3");
  EXPECT_EQ(answer("= -3"), "-3");
  EXPECT_EQ(answer("(-3)"), "-3");
}

TEST(FinalNumber, ADenominatorOfZeroIsNoNumber) {
  EXPECT_EQ(answer("1/0"), "none");
  EXPECT_EQ(answer("7 or 1/0"), "7");
}

TEST(FinalNumber, FourHashesComeFirst) {
  EXPECT_EQ(answer("\\boxed{1} 2\n#### 3 (of 4)\n5"), "3");
  EXPECT_EQ(answer("#### 1\n#### 2"), "2");
  EXPECT_EQ(answer("2 is it\n#### "), "none");
  EXPECT_EQ(answer("####\n5"), "none");
}

TEST(FinalNumber, TheLastBoxComesNext) {
  EXPECT_EQ(answer("\\boxed{1}, no, \\boxed{2}, said 3"), "2");
  EXPECT_EQ(answer("\\boxed{\\text{about }{12}} 3"), "12");
  EXPECT_EQ(answer("\\boxed{\\frac{1}{2}}"), "1/2");
  EXPECT_EQ(answer("\\boxed{-\\dfrac{1}{2}}"), "-1/2");
  EXPECT_EQ(answer("\\boxed{\\$1{,}000}"), "1000");
  EXPECT_EQ(answer("\\boxed{50\\%}"), "50");
  EXPECT_EQ(answer("\\boxed{none}"), "none");
  EXPECT_EQ(answer("7 so \\boxed{12"), "none");  // cut off
}

TEST(FinalNumber, BrokenFractionsAreNoTrouble) {
  EXPECT_EQ(answer("\\frac{1}"), "1");
  EXPECT_EQ(answer("\\frac{1}{2"), "2");
  EXPECT_EQ(answer("a frac{3"), "3");
}

TEST(SameFinalNumber, ComparesAsNumbers) {
  EXPECT_TRUE(same_final_number("18.00", "18"));
  EXPECT_TRUE(same_final_number("1/2", "0.5"));
  EXPECT_TRUE(same_final_number("2/4", "\\frac{1}{2}"));
  EXPECT_TRUE(same_final_number("1,000", "#### 1000"));
  EXPECT_FALSE(same_final_number("1/3", "0.3333"));
  EXPECT_FALSE(same_final_number("-18", "18"));
  EXPECT_FALSE(same_final_number("180", "18"));
}

TEST(SameFinalNumber, LongNumbersAreComparedDigitByDigit) {
  EXPECT_TRUE(same_final_number("123456789012345678901", "123456789012345678901"));
  EXPECT_FALSE(same_final_number("123456789012345678902", "123456789012345678901"));
}

}  // namespace
}  // namespace miles
