// Ctrl-C and SIGTERM: the run ends soon, says what to do, and goes on with the same bits.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "base/file.h"
#include "tests/program/program.h"
#include "tests/support/shared.h"

namespace miles::test {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kGpuPeak = {"--colocate", "--colocate-memory-peak-device", "gpu"};

TEST(Interrupt, EndsAtASafePointAndResumesWithTheSameBits) {
  const ScratchDir dir;
  const std::vector<std::string> longer = {"--num-rollout", "20"};
  ASSERT_EQ(run_miles(with(with(small_run(dir / "whole"), kGpuPeak), longer)).exit_code, 0);
  for (const auto& [signal, code] : {std::pair{SIGINT, 130}, {SIGTERM, 143}}) {
    const fs::path run = dir / fmt::format("my run {}", code),
                   save = dir / fmt::format("my $save{}", code);
    const auto flags = with(with(with(small_run(run), kGpuPeak), longer),
                            {"--save", save.string(), "--save-interval", "2"});
    const Outcome ended =
        run_and_signal(flags, {.path = run / "metrics.jsonl", .lines = 5, .signal = signal});
    ASSERT_EQ(ended.exit_code, code) << ended.log;
    const auto rows = json_lines(run / "metrics.jsonl").size();
    EXPECT_LT(rows, 20);
    EXPECT_EQ(json_lines(run / "samples.jsonl").size(), 8 * rows);
    EXPECT_TRUE(fs::exists(run / "report.html"));
    EXPECT_NE(ended.log.find(fmt::format("{} of 20 rollouts are done", rows)), std::string::npos)
        << ended.log;
    const std::string way =
        fmt::format("--config '{}/config.toml' --load '{}'", run.string(), save.string());
    EXPECT_NE(ended.log.find(way), std::string::npos) << ended.log;
    const Outcome resumed =
        run_miles({"train", "--config", (run / "config.toml").string(), "--load", save.string()});
    ASSERT_EQ(resumed.exit_code, 0) << resumed.log;
    EXPECT_EQ(numbers_of(run), numbers_of(dir / "whole"));
  }
}

/// Flags of a run whose first turn would take many seconds, and what ends it within it.
struct LongTurn {
  std::vector<std::string> flags;
  std::string event;  // of memory.jsonl, the last before the signal
};

TEST(Interrupt, DoesNotWaitForALongTurn) {
  const std::vector<std::string> large = {"--rollout-batch-size", "4000", "--max-tokens-per-gpu",
                                          "1000"};
  const std::vector<LongTurn> turns = {
      {large, "actor.update_weights"},  // while it generates
      {with(large, {"--loss-type", "sft_loss", "--n-samples-per-prompt", "16"}),
       "rollout.generate"}};  // while it trains
  for (const LongTurn& turn : turns) {
    const ScratchDir dir;
    const auto flags = with(with(small_run(dir / "run"), turn.flags), {"--num-rollout", "1"});
    // One line an event: how many come before it is known from the same turn of a smaller run.
    ASSERT_EQ(run_miles(with(with(small_run(dir / "small"), turn.flags),
                             {"--rollout-batch-size", "2", "--num-rollout", "1"}))
                  .exit_code,
              0);
    int before = 0;
    for (const auto& line : json_lines(dir / "small" / "memory.jsonl")) {
      ++before;
      if (line["event"] == turn.event) break;
    }
    const Outcome ended = run_and_signal(
        flags, {.path = dir / "run" / "memory.jsonl", .lines = before, .signal = SIGINT});
    EXPECT_EQ(ended.exit_code, 130) << ended.log;
    EXPECT_NE(ended.log.find("0 of 1 rollouts are done"), std::string::npos) << ended.log;
    EXPECT_NE(ended.log.find("--save was not given"), std::string::npos) << ended.log;
    EXPECT_TRUE(json_lines(dir / "run" / "metrics.jsonl").empty());
    EXPECT_TRUE(json_lines(dir / "run" / "samples.jsonl").empty());
    EXPECT_TRUE(fs::exists(dir / "run" / "report.html"));
  }
}

TEST(Interrupt, DoesNotWaitForARewardThatDoesNotCome) {
  const ScratchDir dir;
  const Outcome ended =
      run_and_signal(with(small_run(dir / "run"),
                          {"--custom-rm-command",
                           fmt::format("touch {}; read line; echo >{}; sleep 1000",
                                       (dir / "started").string(), (dir / "asked").string())}),
                     {.path = dir / "asked", .signal = SIGTERM});
  EXPECT_EQ(ended.exit_code, 143) << ended.log;
}

TEST(Interrupt, ARewardThatMindsNeitherSignalNorEndOfInputEndsWithTheProgram) {
  const ScratchDir dir;
  const fs::path beats = dir / "beats";
  const std::vector<std::string> worker = {
      "--custom-rm-command",
      fmt::format("trap '' INT TERM; while :; do sleep 0.05; echo >>{}; done", beats.string())};
  const auto beats_no_more = [&] {
    const auto size = fs::file_size(beats);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    EXPECT_EQ(fs::file_size(beats), size) << "it is still there";
  };
  const auto ends = [&](const std::vector<std::string>& command, int signal, bool twice) {
    fs::remove(beats);
    const Outcome ended = run_and_signal(
        with(command, worker),
        {.path = beats, .lines = 8, .signal = signal, .twice = twice});  // it is past the start
    EXPECT_EQ(ended.exit_code, 128 + signal) << ended.log;
    EXPECT_EQ(ended.log.find("rollouts are done"), std::string::npos) << ended.log;
    beats_no_more();
  };
  ends(small_run(dir / "run"), SIGINT, true);
  ends(small_run(dir / "run"), SIGTERM, true);
  ends({"eval", "--model", std::string(MILES_SOURCE_DIR) + "/tests/fixtures/program/tiny",
        "--init-random", "--eval-prompt-data", "sums", "synthetic:addition?max=9&count=4",
        "--eval-max-response-len", "4", "--rollout-max-prompt-len", "8"},
       SIGINT, false);

  fs::remove(beats);
  const Outcome killed = run_and_signal(with(small_run(dir / "run"), worker),
                                        {.path = beats, .lines = 8, .signal = SIGKILL});
  EXPECT_EQ(killed.exit_code, 128 + SIGKILL) << killed.log;
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  beats_no_more();
}

}  // namespace
}  // namespace miles::test
