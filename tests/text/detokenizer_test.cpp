#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "text/utf8.h"

namespace miles {
namespace {

using Ids = std::vector<int32_t>;

std::filesystem::path fixture_dir(const char* name) {
  return std::filesystem::path(MILES_SOURCE_DIR) / "tests/fixtures/text" / name;
}

TEST(Detokenizer, ACharacterComesOnlyWhenItIsWhole) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  Detokenizer detokenizer(tokenizer);
  EXPECT_EQ(detokenizer.push('a'), "a");
  EXPECT_EQ(detokenizer.push(0xF0), "");
  EXPECT_EQ(detokenizer.push(0x9F), "");
  EXPECT_EQ(detokenizer.push(0x98), "");
  EXPECT_EQ(detokenizer.push(0x80), "😀");
  EXPECT_EQ(detokenizer.push('b'), "b");
  EXPECT_EQ(detokenizer.flush(), "");
  EXPECT_EQ(detokenizer.text(), "a😀b");
}

TEST(Detokenizer, AnUnfinishedCharacterBecomesAReplacementAtTheEnd) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  Detokenizer detokenizer(tokenizer);
  detokenizer.push(0xE4);
  EXPECT_EQ(detokenizer.push(0xBD), "");
  EXPECT_EQ(detokenizer.flush(), "\uFFFD");
  EXPECT_EQ(detokenizer.flush(), "") << "a second flush adds nothing";
  EXPECT_EQ(detokenizer.text(), "\uFFFD");
}

TEST(Detokenizer, ABrokenCharacterIsReplacedWhenTheNextOneStarts) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  Detokenizer detokenizer(tokenizer);
  detokenizer.push(0xE4);
  EXPECT_EQ(detokenizer.push('x'), "\uFFFDx");
  EXPECT_EQ(detokenizer.push(0x80), "\uFFFD");
}

TEST(Detokenizer, SpecialTokensCanBeLeftOut) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  Detokenizer keeping(tokenizer);
  Detokenizer skipping(tokenizer, {.skip_special = true});
  EXPECT_EQ(keeping.push(257), "<eos>");
  EXPECT_EQ(skipping.push(257), "");
  EXPECT_EQ(skipping.push(1000), "") << "an id without a token";
}

TEST(Detokenizer, EveryPieceIsValidUtf8AndTheyMakeTheWhole) {
  for (const char* name : {"llama3_like", "metaspace_like"}) {
    const Tokenizer tokenizer = Tokenizer::load(fixture_dir(name));
    uint32_t state = 1;
    Ids ids;
    for (int i = 0; i < 3000; ++i) {
      state = state * 1664525 + 1013904223;
      ids.push_back(static_cast<int32_t>((state >> 8) % (tokenizer.vocab_size() + 2)));
    }
    Detokenizer detokenizer(tokenizer);
    std::string joined;
    for (const int32_t id : ids) {
      const std::string_view piece = detokenizer.push(id);
      ASSERT_TRUE(is_valid_utf8(piece)) << name;
      joined += piece;
    }
    joined += detokenizer.flush();
    EXPECT_EQ(joined, tokenizer.decode(ids)) << name;
  }
}

TEST(DetokenizerDeathTest, AnIdAfterTheEndIsOurBug) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  Detokenizer detokenizer(tokenizer);
  detokenizer.flush();
  EXPECT_DEATH(detokenizer.push('a'), "after the end");
}

}  // namespace
}  // namespace miles
