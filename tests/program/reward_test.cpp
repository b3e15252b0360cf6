// Rewards that cannot be had: what is said, and when.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/program/program.h"
#include "tests/support/shared.h"

namespace miles::test {
namespace {

/// A file of prompts with these labels.
std::string prompts_with(const ScratchDir& dir, const std::vector<std::string>& labels) {
  const std::string path = (dir / "data.jsonl").string();
  std::ofstream file(path);
  for (const std::string& label : labels)
    file << nlohmann::json{{"input", "1+1="}, {"label", label}}.dump() << '\n';
  return path;
}

std::vector<std::string> eval_of(const std::string& data) {
  return {"eval",
          "--model",
          std::string(MILES_SOURCE_DIR) + "/tests/fixtures/program/tiny",
          "--init-random",
          "--rollout-max-prompt-len",
          "8",
          "--eval-max-response-len",
          "4",
          "--eval-prompt-data",
          "sums",
          data};
}

TEST(Labels, OnesThatSayNothingAreSkippedAndCountedOrRefused) {
  const ScratchDir dir;
  const std::string some = prompts_with(dir, {"2", "", "two", "2"});
  const Outcome math = run_miles(with(eval_of(some), {"--rm-type", "math"}));
  EXPECT_EQ(math.exit_code, 0) << math.log;
  EXPECT_NE(math.log.find("sums: 2 of 4 prompts lack a label with a number in it"),
            std::string::npos)
      << math.log;
  const Outcome exact = run_miles(eval_of(some));
  EXPECT_EQ(exact.exit_code, 0) << exact.log;
  EXPECT_NE(exact.log.find("sums: 1 of 4 prompts"), std::string::npos) << exact.log;
  const Outcome none = run_miles(with(eval_of(some), {"--label-key", ""}));
  EXPECT_EQ(none.exit_code, 3) << none.log;
  EXPECT_NE(none.log.find("none of the 4 prompts has a label"), std::string::npos) << none.log;
  EXPECT_NE(none.log.find("--label-key"), std::string::npos) << none.log;
}

TEST(Labels, TrainingDoesTheSame) {
  const ScratchDir dir;
  const std::string data = prompts_with(dir, {"2", "", "two", "3"});
  const auto run = with(small_run(dir / "run"), {"--prompt-data", data, "--rm-type", "math"});
  const Outcome some = run_miles(run);
  EXPECT_EQ(some.exit_code, 0) << some.log;
  EXPECT_NE(some.log.find("2 of 4 prompts lack a label with a number"), std::string::npos)
      << some.log;
  for (const auto& sample : json_lines(dir / "run" / "samples.jsonl"))
    EXPECT_TRUE(sample["label"] == "2" || sample["label"] == "3") << sample;
  const auto none = with(run, {"--label-key", "", "--run-dir", (dir / "none").string()});
  EXPECT_EQ(run_miles(none).exit_code, 3);
  const Outcome supervised = run_miles(with(none, {"--loss-type", "sft_loss"}));
  EXPECT_EQ(supervised.exit_code, 3);
  EXPECT_NE(supervised.log.find("none of the 4 prompts has a label to learn"), std::string::npos)
      << supervised.log;
  EXPECT_FALSE(std::filesystem::exists(dir / "none"));
  // A program of the user's may do without.
  const Outcome custom = run_miles(with(
      none, {"--num-rollout", "1", "--custom-rm-command",
             "n=-1; while read -r line; do n=$((n+1)); echo \"{\\\"id\\\":$n,\\\"reward\\\":1}\"; "
             "done"}));
  EXPECT_EQ(custom.exit_code, 0) << custom.log;
}

TEST(RewardProgram, AnEmptyCommandIsNoneAndSaysSo) {
  const ScratchDir dir;
  const Outcome outcome = run_miles(with(small_run(dir / "a"), {"--custom-rm-command", ""}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_NE(outcome.log.find("--custom-rm-command is empty"), std::string::npos) << outcome.log;
  EXPECT_EQ(run_miles(small_run(dir / "b")).log.find("is empty"), std::string::npos);
}

TEST(RewardProgram, OneThatCannotStartIsRefusedBeforeAnythingIsLoaded) {
  const ScratchDir dir;
  const std::vector<std::string> command = {"--custom-rm-command", "/no/such/program"};
  for (const auto& run : {small_run(dir / "run"), eval_of(prompts_with(dir, {"2"}))}) {
    const Outcome outcome = run_miles(with(run, command));
    EXPECT_EQ(outcome.exit_code, 3) << outcome.log;
    EXPECT_NE(outcome.log.find("--custom-rm-command '/no/such/program' cannot start"),
              std::string::npos)
        << outcome.log;
    EXPECT_EQ(outcome.log.find("parameters"), std::string::npos) << outcome.log;  // "model: …"
  }
  EXPECT_FALSE(std::filesystem::exists(dir / "run"));
}

TEST(RewardProgram, OneThatNeedsAWhileToFailEndsTheGenerationItMeets) {
  const ScratchDir dir;
  const Outcome outcome =
      run_miles(with(small_run(dir / "run"), {"--rollout-batch-size", "4000", "--custom-rm-command",
                                              "sleep 0.4; echo no module >&2; exit 1"}));
  EXPECT_EQ(outcome.exit_code, 3) << outcome.log;
  EXPECT_NE(outcome.log.find("cannot start: it exited with status 1"), std::string::npos)
      << outcome.log;
  EXPECT_NE(outcome.log.find("no module"), std::string::npos) << outcome.log;
}

}  // namespace
}  // namespace miles::test
