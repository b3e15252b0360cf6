#include "text/text_normalizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace miles {
namespace {

using nlohmann::json;

TEST(TextNormalizer, TheFourFormsDifferWhereTheyShould) {
  EXPECT_EQ(normalize_unicode("e\u0301ﬁ", UnicodeForm::nfc), "éﬁ");
  EXPECT_EQ(normalize_unicode("éﬁ", UnicodeForm::nfd), "e\u0301ﬁ");
  EXPECT_EQ(normalize_unicode("e\u0301ﬁ", UnicodeForm::nfkc), "éfi");
  EXPECT_EQ(normalize_unicode("éﬁ", UnicodeForm::nfkd), "e\u0301fi");
  EXPECT_EQ(normalize_unicode("", UnicodeForm::nfc), "");
}

TEST(TextNormalizer, NfcComposesHangulAndOrdersMarks) {
  EXPECT_EQ(normalize_unicode("\u1112\u1161\u11AB", UnicodeForm::nfc), "한");
  EXPECT_EQ(normalize_unicode("q\u0307\u0323", UnicodeForm::nfc), "q\u0323\u0307");
  EXPECT_EQ(normalize_unicode("\u212B\u2126", UnicodeForm::nfc), "ÅΩ");
  EXPECT_EQ(normalize_unicode("\u0958", UnicodeForm::nfc), "\u0915\u093C") << "an exclusion";
}

TEST(TextNormalizer, AMillionUnorderedMarksAreFast) {
  std::string text = "a";
  for (int i = 0; i < 500'000; ++i) text += "\u0307\u0323";
  const std::string ordered = normalize_unicode(text, UnicodeForm::nfd);
  EXPECT_EQ(ordered.size(), text.size());
  EXPECT_EQ(ordered.substr(0, 5), "a\u0323\u0323");
}

TEST(TextNormalizer, StepsRunInOrder) {
  const auto normalizer = TextNormalizer::from_json(
      {{"type", "Sequence"},
       {"normalizers",
        {{{"type", "Prepend"}, {"prepend", "▁"}},
         {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}},
         {{"type", "Replace"}, {"pattern", {{"Regex", "[0-9]+"}}}, {"content", "#"}}}}},
      "test");
  EXPECT_EQ(normalizer.apply("a b 12c3"), "▁a▁b▁#c#");
  EXPECT_EQ(normalizer.apply(""), "") << "nothing is put before an empty text";
}

}  // namespace
}  // namespace miles
