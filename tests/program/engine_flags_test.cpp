// Device, dtype and memory flags of `generate` and `eval` do what they do in `train`.
#include <gtest/gtest.h>

#include <regex>

#include "tests/program/program.h"
#include "tests/support/shared.h"

namespace miles::test {
namespace {

const std::vector<std::string> kModel = {
    "--model", std::string(MILES_SOURCE_DIR) + "/tests/fixtures/program/tiny", "--init-random"};

std::vector<std::vector<std::string>> commands() {
  return {with({"generate", "--prompt", "1+1=", "--max-new-tokens", "4"}, kModel),
          with({"eval", "--eval-prompt-data", "sums", "synthetic:addition?max=9&count=4",
                "--rollout-max-prompt-len", "8", "--eval-max-response-len", "4"},
               kModel)};
}

TEST(EngineFlags, ABudgetIsMetToTheByteOrRefusedWithWhatIsNeeded) {
  for (const auto& command : commands())
    for (const std::string place : {"gpu", "host"}) {
      const std::string flag = "--" + place + "-memory-budget";
      const Outcome refused = run_miles(with(command, {flag, "1"}));
      EXPECT_EQ(refused.exit_code, 4) << refused.log;
      EXPECT_EQ(refused.log.find("--colocate"), std::string::npos) << refused.log;
      std::smatch need;
      ASSERT_TRUE(std::regex_search(refused.log, need, std::regex("\n  " + flag + " (\\d+) ")))
          << refused.log;
      const int64_t bytes = std::stoll(need[1]);
      EXPECT_EQ(run_miles(with(command, {flag, std::to_string(bytes - 1)})).exit_code, 4);
      const Outcome exact = run_miles(with(command, {flag, std::to_string(bytes)}));
      EXPECT_EQ(exact.exit_code, 0) << exact.log;
    }
}

TEST(EngineFlags, WhatTheEngineRefusesIsNamedAsItWasGiven) {
  const auto says = [](const std::vector<std::string>& run, const std::string& part) {
    const Outcome outcome = run_miles(run);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.log;
    EXPECT_NE(outcome.log.find(part), std::string::npos) << outcome.log;
  };
  for (const auto& command : commands()) {
    says(with(command, {"--max-total-tokens", "3000000000"}), "lower --max-total-tokens");
    says(with(command, {"--page-size", "3000000000"}), "--page-size");
  }
  says(with(commands()[0], {"--top-k", "0"}), "--top-k is 0");
  says(with(commands()[0], {"--max-new-tokens", "0"}), "--max-new-tokens: '0'");
  says(with(commands()[1], {"--eval-top-k", "0"}), "--eval-top-k is 0");
}

TEST(EngineFlags, TheDtypeIsTheOneAskedFor) {
  for (const auto& command : commands())
    for (const char* dtype : {"float32", "bfloat16"}) {
      const Outcome outcome = run_miles(with(command, {"--dtype", dtype}));
      EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
      EXPECT_NE(outcome.log.find(std::string("random weights, ") + dtype), std::string::npos)
          << outcome.log;
    }
}

TEST(EngineFlags, ADeviceThatIsNotThereIsRefused) {
  if (std::getenv("MILES_TEST_DEVICE") != nullptr) GTEST_SKIP() << "it is there";
  for (const auto& command : commands()) {
    const Outcome outcome = run_miles(with(command, {"--device", "cuda"}));
    EXPECT_EQ(outcome.exit_code, 5) << outcome.log;
    EXPECT_NE(outcome.log.find("--device cpu"), std::string::npos) << outcome.log;
  }
}

}  // namespace
}  // namespace miles::test
