#include "cli/toml.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace miles {
namespace {

std::vector<std::string> values_of(const std::string& text) {
  return read_toml(text, "f").at(0).values;
}

std::string error_of(const std::string& text) {
  try {
    read_toml(text, "f.toml");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::flags);
    return error.what();
  }
  return "none";
}

TEST(Toml, ReadsStringsNumbersAndArraysWithTheirLines) {
  const auto entries = read_toml(
      "# a comment\n"
      "lr = 1e-3  # rate\r\n"
      "\n"
      "stop = [\"a\", # one\n  'b # c',\n]\n"
      "colocate=true\n"
      "none = []\n"
      "device = cuda",
      "f");
  ASSERT_EQ(entries.size(), 5);
  EXPECT_EQ(entries[0].key, "lr");
  EXPECT_EQ(entries[0].values, std::vector<std::string>{"1e-3"});
  EXPECT_EQ(entries[0].line, 2);
  EXPECT_TRUE(entries[1].is_array);
  EXPECT_EQ(entries[1].values, (std::vector<std::string>{"a", "b # c"}));
  EXPECT_EQ(entries[2].values, std::vector<std::string>{"true"});
  EXPECT_EQ(entries[2].line, 7);
  EXPECT_TRUE(entries[3].values.empty());
  EXPECT_EQ(entries[4].values, std::vector<std::string>{"cuda"});
}

TEST(Toml, ReadsQuotedKeysAndAByteOrderMark) {
  const auto entries = read_toml("\xEF\xBB\xBF\"lr\" = 1\n'stop' = 2\n", "f");
  ASSERT_EQ(entries.size(), 2);
  EXPECT_EQ(entries[0].key, "lr");
  EXPECT_EQ(entries[1].key, "stop");
}

TEST(Toml, GivesBackWhatItWrote) {
  for (const std::string text :
       {"", "plain", "a \"quoted\" \\d+ one", "line\nend\ttab", "[END]", "# no comment", "1e-06",
        "-1", "true", "00 7", "é, 字", "a,b", "'", " blanks "})
    EXPECT_EQ(values_of("x = " + toml_value(text)), std::vector<std::string>{text}) << text;
}

TEST(Toml, NamesTheLineOfWhatItCannotRead) {
  EXPECT_TRUE(error_of("a = 1\n[section]\n").starts_with("f.toml:2: "));
  EXPECT_TRUE(error_of("a = 1\nwords\n").starts_with("f.toml:2: 'words'"));
  EXPECT_TRUE(error_of("a =\n").starts_with("f.toml:1: a value is missing"));
  EXPECT_TRUE(error_of("a = [1,\n2\n").starts_with("f.toml:3: an array has no end"));
  EXPECT_TRUE(error_of("a = \"x\n").starts_with("f.toml:1: a text has no closing"));
  EXPECT_TRUE(error_of("a = \"\\d\"\n").find("backslash") != std::string::npos);
  EXPECT_TRUE(error_of("a = \"x\" y\n").starts_with("f.toml:1: 'y' follows"));
  EXPECT_TRUE(error_of("a = 1\nb = 2\na = 3\n").starts_with("f.toml:3: a is on line 1"));
}

}  // namespace
}  // namespace miles
