// "Does not fit" is followed by flags with which it fits: each one is given, and the run is planned
// again.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <sstream>

#include "base/error.h"
#include "cli/flags.h"
#include "rl/train_plan.h"
#include "tests/support/fake_gpu.h"

namespace miles {
namespace {

using test::FakeGpu;
using test::kGiB;
using Words = std::vector<std::string>;

Words split(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

/// What a command line is refused with; empty: it fits.
std::string refusal(const Words& words, Device& device) {
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  CommandLine line("train", "");
  TrainConfig config;
  BatchSizeFlags batch;
  add_train_flags(line, config, batch);
  line.parse(static_cast<int>(argv.size()), argv.data());
  finish_train_flags(line, config, batch);
  const ModelConfig model = find_preset(config.model.model).value();
  const ParamLayout layout(model);
  try {
    plan_training(config,
                  {.model = model, .layout = layout, .device = device, .longest_prompt = 300});
    return "";
  } catch (const Error& error) {
    // Without the flag that shortens samples another may be too small for one.
    EXPECT_TRUE(error.code() == ErrorCode::budget || error.code() == ErrorCode::flags)
        << error.what();
    return error.what();
  }
}

/// Changes of flags under a heading.
struct Advice {
  std::string heading;
  std::vector<Words> changes;  // a line each
};

std::vector<Advice> advice_in(const std::string& refusal) {
  std::vector<Advice> all;
  std::istringstream in(refusal);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("  "))
      all.back().changes.push_back(split(line.substr(0, line.find('('))));
    else
      all.push_back({line, {}});
  return all;
}

Words joined(const std::vector<Words>& changes, size_t left_out = SIZE_MAX) {
  Words all;
  for (size_t i = 0; i < changes.size(); ++i)
    if (i != left_out) all.insert(all.end(), changes[i].begin(), changes[i].end());
  return all;
}

class FitAdvice : public testing::Test {
 protected:
  /// Gives what is advised, and counts by how it was said.
  void follow(const Words& words, Device& device) {
    const std::string text = refusal(words, device);
    if (text.empty()) {
      ++fit_;
      return;
    }
    SCOPED_TRACE(fmt::format("{}\n{}", fmt::join(words, " "), text));
    const auto with = [&](Words more) {
      more.insert(more.begin(), words.begin(), words.end());
      return refusal(more, device);
    };
    for (const auto& [heading, changes] : advice_in(text)) {
      if (const size_t at = heading.find("more memory: even with "); at != std::string::npos) {
        ++hopeless_;
        const size_t flags = at + std::string("more memory: even with ").size();
        EXPECT_NE(with(split(heading.substr(flags, heading.find(", ", flags) - flags))), "");
        continue;
      }
      ASSERT_FALSE(changes.empty());
      if (heading.ends_with("all of")) {
        ++joint_;
        EXPECT_EQ(with(joined(changes)), "");
        for (size_t i = 0; i < changes.size(); ++i)
          EXPECT_NE(with(joined(changes, i)), "") << fmt::format("{} is idle", changes[i]);
        continue;
      }
      ++single_;
      for (const Words& flags : changes)
        EXPECT_EQ(with(flags), "") << fmt::format("{}", fmt::join(flags, " "));
    }
  }

  int fit_ = 0, single_ = 0, joint_ = 0, hopeless_ = 0;
};

TEST_F(FitAdvice, IsEnoughOnAGpuOfAnySize) {
  const Words run = split(
      "--prompt-data x --num-rollout 1 --rollout-batch-size 32 --n-samples-per-prompt 8 "
      "--rollout-max-response-len 1024 --init-random --host-memory-budget 128GiB");
  for (const std::string model : {"qwen3-0.6b", "qwen3-8b"})
    for (const std::string sharing :
         {"", "--colocate --no-offload-rollout", "--no-offload-train --no-offload-rollout",
          "--colocate --colocate-memory-peak-device gpu --eval-interval 1 --eval-prompt-data a x "
          "--eval-max-response-len 3000"})
      for (const int64_t gib : {2, 24, 80}) {
        FakeGpu gpu(gib * kGiB, kGiB / 2);
        Words words = run;
        for (const std::string& word : split(fmt::format("--model {} {}", model, sharing)))
          words.push_back(word);
        follow(words, gpu);
      }
  EXPECT_GT(fit_, 0);
  EXPECT_GT(single_, 0);
  EXPECT_GT(joint_, 0);
  EXPECT_GT(hopeless_, 0);
}

TEST_F(FitAdvice, GivesNothingUpThatFits) {
  FakeGpu gpu(80 * kGiB, kGiB / 2);
  const Words run = split(
      "--model qwen3-4b --init-random --prompt-data x --num-rollout 1 --rollout-batch-size 16 "
      "--rollout-max-response-len 1024 --max-tokens-per-gpu 16384 --host-memory-budget 23GiB");
  // Of host memory there is too little to stream.
  Words fits = run;
  for (const std::string& word :
       split("--num-steps-per-rollout 8 --global-batch-size 16 --max-total-tokens 49152"))
    fits.push_back(word);
  ASSERT_EQ(refusal(fits, gpu), "");
  follow(run, gpu);
  EXPECT_EQ(hopeless_, 0);
  EXPECT_EQ(fit_, 0);
  // And where one has been told to stream, back from it is a way.
  follow(split("--model qwen3-0.6b --init-random --prompt-data x --num-rollout 1 "
               "--rollout-batch-size 16 --host-memory-budget 2GiB --colocate "
               "--colocate-memory-peak-device gpu"),
         gpu);
  EXPECT_EQ(hopeless_, 0);
  EXPECT_EQ(fit_, 0);
}

TEST_F(FitAdvice, NamesNothingThatARunThatGoesOnRefuses) {
  FakeGpu gpu(kGiB);  // hopeless: everything that could be changed is named
  const std::string run =
      "--model qwen3-0.6b --init-random --prompt-data x --num-rollout 1 --rollout-batch-size 4 ";
  EXPECT_NE(refusal(split(run), gpu).find("--global-batch-size 1"), std::string::npos);
  const std::string resumed = refusal(split(run + "--load checkpoints"), gpu);
  EXPECT_NE(resumed.find("--max-total-tokens"), std::string::npos) << resumed;
  EXPECT_EQ(resumed.find("--global-batch-size"), std::string::npos) << resumed;
}

TEST_F(FitAdvice, IsEnoughForAnyBudget) {
  FakeGpu gpu(141 * kGiB, kGiB / 2);
  for (const std::string budgets :
       {"--gpu-memory-budget 2GiB --host-memory-budget 128GiB",
        "--gpu-memory-budget 40GiB --host-memory-budget 128GiB", "--host-memory-budget 7GiB",
        "--gpu-memory-budget 3GiB --host-memory-budget 8500MiB"})
    for (const std::string more : {"--num-steps-per-rollout 4 --max-tokens-per-gpu 16384",
                                   "--recompute-num-layers 3 --max-total-tokens 100000"})
      follow(split(fmt::format("--model qwen3-0.6b --init-random --prompt-data x --num-rollout 1 "
                               "--rollout-batch-size 16 --rollout-max-response-len 1024 --colocate "
                               "--colocate-memory-peak-device gpu {} {}",
                               budgets, more)),
             gpu);
  EXPECT_GT(fit_, 0);
  EXPECT_GT(single_, 0);
  EXPECT_GT(joint_, 0);
}

TEST_F(FitAdvice, IsEnoughWhereBothMemoriesAreOne) {
  const auto cpu = make_cpu_device();
  // Of a machine with more memory some fit.
  for (const std::string model : {"qwen3-0.6b", "qwen3-1.7b", "qwen3-32b"})
    for (const std::string sharing : {"", "--colocate --colocate-memory-peak-device gpu"})
      follow(split(fmt::format("--model {} --init-random --prompt-data x --num-rollout 1 "
                               "--rollout-batch-size 512 --rollout-max-response-len 4096 {}",
                               model, sharing)),
             *cpu);
  EXPECT_GT(single_ + joint_ + hopeless_, 0);
}

}  // namespace
}  // namespace miles
