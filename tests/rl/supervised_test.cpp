#include "rl/supervised.h"

#include <gtest/gtest.h>

namespace miles {
namespace {

Sample pending(const std::string& prompt, const std::string& label) {
  Sample sample;
  sample.prompt = prompt;
  sample.label = label;
  return sample;
}

using Ids = std::vector<int32_t>;

TEST(AnswerWithLabels, TheEndIsLearnedToo) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  std::vector<Sample> samples = {pending("1+1=", "2"), pending("", "x")};
  EXPECT_EQ(answer_with_labels(samples, {.tokenizer = tokenizer, .eos = 257, .max_length = 7}), 0);
  EXPECT_EQ(samples[0].tokens, (Ids{256, '1', '+', '1', '=', '2', 257}));
  EXPECT_EQ(samples[0].response, "2");
  EXPECT_EQ(samples[0].response_length, 2);
  EXPECT_EQ(samples[0].loss_mask.size(), 2);
  EXPECT_EQ(samples[0].loss_mask.back(), 1) << "the end";
  EXPECT_EQ(samples[0].status, SampleStatus::completed);
  EXPECT_EQ(samples[1].tokens, (Ids{256, 'x', 257}));
  for (const Sample& sample : samples) EXPECT_NO_THROW(check_sample(sample));
}

TEST(AnswerWithLabels, WithoutAnEndTheLabelIsAll) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  std::vector<Sample> samples = {pending("a", "bc")};
  EXPECT_EQ(answer_with_labels(samples, {.tokenizer = tokenizer, .eos = {}, .max_length = 4}), 0);
  EXPECT_EQ(samples[0].tokens, (Ids{256, 'a', 'b', 'c'}));
}

TEST(AnswerWithLabels, WhatIsTooLongIsCutAndCounted) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  std::vector<Sample> samples = {pending("ab", "cde"), pending("ab", "c"), pending("abc", "d")};
  EXPECT_EQ(answer_with_labels(samples, {.tokenizer = tokenizer, .eos = 257, .max_length = 5}), 2);
  EXPECT_EQ(samples[0].tokens, (Ids{256, 'a', 'b', 'c', 'd'}));
  EXPECT_EQ(samples[0].status, SampleStatus::truncated);
  EXPECT_EQ(samples[1].tokens, (Ids{256, 'a', 'b', 'c', 257})) << "just fits";
  EXPECT_EQ(samples[1].status, SampleStatus::completed);
  EXPECT_EQ(samples[2].tokens, (Ids{256, 'a', 'b', 'c', 'd'})) << "the end goes first";
  EXPECT_EQ(samples[2].status, SampleStatus::truncated);
  for (const Sample& sample : samples) {
    EXPECT_EQ(std::ssize(sample.tokens), 5);
    EXPECT_NO_THROW(check_sample(sample));
  }
}

}  // namespace
}  // namespace miles
