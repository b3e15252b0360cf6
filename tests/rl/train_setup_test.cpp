#include "rl/train_setup.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "tests/support/shared.h"

namespace miles {
namespace {

std::vector<std::string> texts_of(const DataSource& data) {
  std::vector<std::string> texts;
  for (const Prompt& prompt : data.prompts()) texts.push_back(prompt.text);
  return texts;
}

TEST(KeepFittingPrompts, SkipsTheLongOnesAndKeepsTheRest) {
  const test::ScratchDir dir;
  write_file_atomically(dir / "rows.jsonl",
                        "{\"input\": \"abcd\", \"label\": \"1\"}\n"
                        "{\"input\": \"abcde\", \"label\": \"2\"}\n"
                        "{\"input\": \"a\", \"label\": \"3\"}\n");
  const Tokenizer tokenizer = Tokenizer::bytes();  // BOS, and a token a byte
  const DataOptions options{.path = (dir / "rows.jsonl").string()};
  DataSource data = DataSource::load(options);
  keep_fitting_prompts(data, tokenizer, 6);
  EXPECT_EQ(data.size(), 3);
  keep_fitting_prompts(data, tokenizer, 5);
  EXPECT_EQ(texts_of(data), (std::vector<std::string>{"abcd", "a"})) << "5 tokens are not too many";
  keep_fitting_prompts(data, tokenizer, 4);
  EXPECT_EQ(texts_of(data), (std::vector<std::string>{"a"}));
  DataSource none = DataSource::load({.path = (dir / "rows.jsonl").string() + "@[0:2]"});
  EXPECT_THROW(keep_fitting_prompts(none, tokenizer, 4), Error);
}

}  // namespace
}  // namespace miles
