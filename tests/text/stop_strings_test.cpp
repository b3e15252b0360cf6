#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "text/utf8.h"

namespace miles {
namespace {

/// Scans a text that grows by `step` bytes a time.
std::optional<StopMatch> scan_in_steps(StopStrings stops, const std::string& text, size_t step) {
  for (size_t end = step; end < text.size() + step; end += step)
    if (const auto match = stops.scan(std::string_view(text).substr(0, end))) return match;
  return std::nullopt;
}

TEST(StopStrings, AMatchAcrossPiecesIsFound) {
  const std::string text = "one two\n\nQuestion: three";
  for (size_t step = 1; step <= text.size(); ++step) {
    const auto match = scan_in_steps(StopStrings({"\n\nQ", "###"}), text, step);
    ASSERT_TRUE(match) << step;
    EXPECT_EQ(match->begin, 7u);
    EXPECT_EQ(match->end, 10u);
    EXPECT_EQ(match->which, 0u);
  }
}

TEST(StopStrings, TheOneThatIsCompleteFirstWinsHoweverTheTextIsCut) {
  const std::string text = "abcdef";
  for (size_t step = 1; step <= text.size(); ++step) {
    const auto match = scan_in_steps(StopStrings({"bcdef", "cd"}), text, step);
    ASSERT_TRUE(match);
    EXPECT_EQ(match->which, 1u) << "'cd' ends before 'bcdef' does; step " << step;
    EXPECT_EQ(match->begin, 2u);
  }
}

TEST(StopStrings, OfTwoThatEndTogetherTheLongerWins) {
  const auto match = scan_in_steps(StopStrings({"d", "bcd", "cd"}), "abcd", 1);
  ASSERT_TRUE(match);
  EXPECT_EQ(match->which, 1u);
  EXPECT_EQ(match->begin, 1u);
}

TEST(StopStrings, TextThatMayBecomeAStopStringIsNotSafe) {
  const StopStrings stops({"</s>", "<|end|>"});
  EXPECT_EQ(stops.safe_length("hello"), 5u);
  EXPECT_EQ(stops.safe_length("hello<"), 5u);
  EXPECT_EQ(stops.safe_length("hello</s"), 5u);
  EXPECT_EQ(stops.safe_length("hello</x"), 8u);
  EXPECT_EQ(stops.safe_length("a<<|e"), 2u);
  EXPECT_EQ(stops.safe_length("<|end|"), 0u);
  EXPECT_EQ(stops.safe_length(""), 0u);
}

TEST(StopStrings, TheLongestPossibleEndIsHeldBack) {
  EXPECT_EQ(StopStrings({"aab"}).safe_length("xaa"), 1u);
  EXPECT_EQ(StopStrings({"aab"}).safe_length("aaa"), 1u);
  EXPECT_EQ(StopStrings({"b", "aaaab"}).safe_length("xaaa"), 1u);
}

TEST(StopStrings, SafeTextNeverEndsWithinACharacter) {
  const StopStrings stops({"é!", "😀😀"});
  const std::string text = "aè😀é";
  for (size_t end = 0; end <= text.size(); ++end) {
    const std::string_view part = std::string_view(text).substr(0, end);
    if (!is_valid_utf8(part)) continue;
    EXPECT_TRUE(is_valid_utf8(part.substr(0, stops.safe_length(part)))) << end;
  }
}

TEST(StopStrings, WithoutStopStringsEverythingIsSafe) {
  StopStrings none({});
  EXPECT_EQ(none.safe_length("abc"), 3u);
  EXPECT_EQ(none.scan("abc"), std::nullopt);
}

TEST(StopStrings, AnEmptyOrInvalidStringIsRefused) {
  for (const char* bad : {"", "\xFF", "\x80x"}) {
    try {
      StopStrings stops({"ok", bad});
      FAIL() << "took a bad stop string";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::flags);
    }
  }
}

}  // namespace
}  // namespace miles
