#include "text/utf8.h"

#include <gtest/gtest.h>

namespace miles {
namespace {

const std::string kBad = "\uFFFD";

// Unicode 15, table 3-11 and its neighbours.
TEST(Utf8, EachMaximalInvalidSequenceBecomesOneReplacement) {
  EXPECT_EQ(repair_utf8("a\xF1\x80\x80\xE1\x80\xC2z"), "a" + kBad + kBad + kBad + "z");
  EXPECT_EQ(repair_utf8("\xC0\xAF"), kBad + kBad) << "an overlong form";
  EXPECT_EQ(repair_utf8("\xE0\x80\xAF"), kBad + kBad + kBad) << "an overlong form";
  EXPECT_EQ(repair_utf8("\xED\xA0\x80"), kBad + kBad + kBad) << "a surrogate";
  EXPECT_EQ(repair_utf8("\xF4\x90\x80\x80"), kBad + kBad + kBad + kBad) << "beyond U+10FFFF";
  EXPECT_EQ(repair_utf8("\xF5"), kBad);
  EXPECT_EQ(repair_utf8("x\x80"), "x" + kBad);
  EXPECT_EQ(repair_utf8("\xF0\x9F\x98"), kBad) << "cut short";
}

TEST(Utf8, ValidTextStaysAsItIs) {
  const std::string text("a\0é你😀\uFFFF\U0010FFFF", 18);
  EXPECT_TRUE(is_valid_utf8(text));
  EXPECT_EQ(repair_utf8(text), text);
  EXPECT_FALSE(is_valid_utf8("\xC3"));
}

TEST(Utf8, EveryCodePointRoundTrips) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(c, text);
    const Utf8Step step = utf8_step(text, 0);
    ASSERT_EQ(step.kind, Utf8Step::Kind::character) << +c;
    ASSERT_EQ(step.length, text.size());
    ASSERT_EQ(step.code_point, c);
    ASSERT_EQ(previous_character("x" + text, 1 + text.size()), 1u);
  }
}

TEST(Utf8, RepairInPartsEqualsRepairOfTheWhole) {
  const std::string text = "a\xE4\xBD\xA0\xF0\x9F\x98\x80\xF0\x9F!\xFF\xC3\xA9\xE4\xBD";
  for (size_t cut = 0; cut <= text.size(); ++cut)
    for (size_t second = cut; second <= text.size(); ++second) {
      Utf8Repair repair;
      std::string out;
      repair.push(text.substr(0, cut), out);
      EXPECT_TRUE(is_valid_utf8(out));
      repair.push(text.substr(cut, second - cut), out);
      EXPECT_TRUE(is_valid_utf8(out));
      repair.push(text.substr(second), out);
      repair.finish(out);
      EXPECT_EQ(out, repair_utf8(text)) << cut << " " << second;
    }
}

TEST(Utf8, WhiteSpaceAndWordCharactersAreThoseOfUnicode) {
  int spaces = 0;
  for (char32_t c = 0; c < 0x110000; ++c) spaces += is_white_space(c);
  EXPECT_EQ(spaces, 25);
  EXPECT_FALSE(is_white_space(0x180E));
  for (const char32_t c : std::u32string_view(U"aZ9_é你\u0301Ⓐ\u200dⅧ"))
    EXPECT_TRUE(is_word_character(c)) << +c;
  for (const char32_t c : std::u32string_view(U" -.!²😀\u00a0"))
    EXPECT_FALSE(is_word_character(c)) << +c;
}

}  // namespace
}  // namespace miles
