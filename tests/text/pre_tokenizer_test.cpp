#include "text/pre_tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace miles {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

Words words_of(const json& pre_tokenizer, const std::string& text, bool at_start = true) {
  const WordSplit split = PreTokenizer::from_json(pre_tokenizer, "test").apply(text, at_start);
  Words words;
  for (size_t i = 0; i < split.words.size(); ++i) words.emplace_back(split.word(i));
  return words;
}

json split(const json& pattern, const char* behavior, bool invert = false) {
  return {{"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}, {"invert", invert}};
}

TEST(PreTokenizer, EachSplitBehaviorTreatsMatchesItsWay) {
  const json dash = {{"String", "-"}};
  const std::string text = "the-final--countdown";
  EXPECT_EQ(words_of(split(dash, "Removed"), text), (Words{"the", "final", "countdown"}));
  EXPECT_EQ(words_of(split(dash, "Isolated"), text),
            (Words{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(words_of(split(dash, "Contiguous"), text),
            (Words{"the", "-", "final", "--", "countdown"}));
  EXPECT_EQ(words_of(split(dash, "MergedWithPrevious"), text),
            (Words{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(words_of(split(dash, "MergedWithNext"), text),
            (Words{"the", "-final", "-", "-countdown"}));
}

TEST(PreTokenizer, AnInvertedPatternDescribesTheWords) {
  EXPECT_EQ(words_of(split({{"Regex", "[a-z]+"}}, "Removed", true), "ab 1 cd!"),
            (Words{"ab", "cd"}));
}

TEST(PreTokenizer, AnExpressionThatMatchesNothingStillEnds) {
  EXPECT_EQ(words_of(split({{"Regex", "x*"}}, "Isolated"), "axxb"), (Words{"a", "xx", "b"}));
  EXPECT_EQ(words_of(split({{"Regex", "x*"}}, "Isolated"), ""), Words{});
  EXPECT_EQ(words_of(split({{"String", ""}}, "Isolated"), "ab"), (Words{"ab"}));
}

TEST(PreTokenizer, WhiteSpaceMeansUnicodesWhiteSpace) {
  const json spaces = split({{"Regex", R"(\s)"}}, "Removed");
  EXPECT_EQ(words_of(spaces, "a\u0085b\u3000c\u180Ed"), (Words{"a", "b", "c\u180Ed"}));
  const json others = split({{"Regex", R"(\S+)"}}, "Isolated");
  EXPECT_EQ(words_of(others, "a\u180Eb c"), (Words{"a\u180Eb", " ", "c"}));
  const json in_class = split({{"Regex", R"([^\s\]]+)"}}, "Isolated");
  EXPECT_EQ(words_of(in_class, "a]b\u00A0c"), (Words{"a", "]", "b", "\u00A0", "c"}));
}

TEST(PreTokenizer, LettersAndNumbersOfUnicode16AreKnown) {
  EXPECT_EQ(words_of(split({{"Regex", R"(\p{L}+)"}}, "Isolated"), "a\u1C89!\U00031350"),
            (Words{"a\u1C89", "!", "\U00031350"}));
  EXPECT_EQ(words_of(split({{"Regex", R"([\p{N}]+)"}}, "Isolated"), "1\U0001D2C0x"),
            (Words{"1\U0001D2C0", "x"}));
}

TEST(PreTokenizer, ByteLevelWritesBytesAsCharacters) {
  EXPECT_EQ(words_of({{"type", "ByteLevel"}, {"add_prefix_space", true}}, "Hello my\té's"),
            (Words{"ĠHello", "Ġmy", "ĉ", "Ã©", "'s"}));
  const json whole = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  EXPECT_EQ(words_of(whole, "a b\n"), (Words{"aĠbĊ"}));
}

TEST(PreTokenizer, MetaspacePrependsAsItsSchemeSays) {
  json metaspace = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "always"}};
  EXPECT_EQ(words_of(metaspace, "a  b", false), (Words{"▁a", "▁", "▁b"}));
  metaspace["prepend_scheme"] = "first";
  EXPECT_EQ(words_of(metaspace, "a b", true), (Words{"▁a", "▁b"}));
  EXPECT_EQ(words_of(metaspace, "a b", false), (Words{"a", "▁b"}));
  EXPECT_EQ(words_of(metaspace, " a", true), (Words{"▁a"})) << "it has one already";
  metaspace["prepend_scheme"] = "never";
  metaspace["split"] = false;
  EXPECT_EQ(words_of(metaspace, "a b"), (Words{"a▁b"}));
}

TEST(PreTokenizer, DigitsAreCutOneByOneOrTogether) {
  EXPECT_EQ(words_of({{"type", "Digits"}, {"individual_digits", true}}, "a12٣"),
            (Words{"a", "1", "2", "٣"}));
  EXPECT_EQ(words_of({{"type", "Digits"}, {"individual_digits", false}}, "a12b"),
            (Words{"a", "12", "b"}));
}

}  // namespace
}  // namespace miles
