// Checkpoints and resuming from outside: what a kill, a full disk and other flags do to them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "base/file.h"
#include "tests/program/program.h"
#include "tests/support/shared.h"

namespace miles::test {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kGpuPeak = {"--colocate", "--colocate-memory-peak-device", "gpu"};
const std::vector<std::string> kEvaluated = {"--eval-interval", "2", "--eval-prompt-data", "sums",
                                             "synthetic:addition?max=9&split=eval&count=20"};

TEST(Resume, AnEarlyExitHasItsCheckpoint) {
  const ScratchDir dir;
  const auto flags = with(small_run(dir / "run"), {"--save", (dir / "save").string()});
  ASSERT_EQ(run_miles(with(flags, {"--debug-exit-after-rollout", "2"})).exit_code, 0);
  const Outcome on = run_miles(with(flags, {"--load", (dir / "save").string()}));
  ASSERT_EQ(on.exit_code, 0) << on.log;
  ASSERT_EQ(run_miles(small_run(dir / "whole")).exit_code, 0);
  EXPECT_EQ(numbers_of(dir / "run"), numbers_of(dir / "whole"));
}

TEST(Resume, AnErrorInTheMiddleLeavesAReportAndSaysHowToGoOn) {
  const ScratchDir dir;
  const std::string save = (dir / "save").string();
  // In the third rollout a file takes the place of the checkpoints' directory.
  std::ofstream(dir / "rm.sh")
      << "n=0\nwhile read -r line; do n=$((n+1)); id=${line#*\\\"id\\\":}; id=${id%%,*}\n"
         "if [ $n = 20 ]; then rm -rf \"$1\"; echo > \"$1\"; fi\n"
         "echo \"{\\\"id\\\":$id,\\\"reward\\\":$((n % 2))}\"; done\n";
  const Outcome failed = run_miles(
      with(small_run(dir / "run"),
           {"--save", save, "--save-interval", "2", "--rm-workers", "1", "--custom-rm-command",
            fmt::format("sh {} {}", (dir / "rm.sh").string(), save)}));
  EXPECT_EQ(failed.exit_code, 3) << failed.log;
  EXPECT_NE(failed.log.find("ended by an error: 4 of 6 rollouts are done"), std::string::npos)
      << failed.log;
  EXPECT_TRUE(fs::exists(dir / "run" / "report.html"));
  EXPECT_EQ(json_lines(dir / "run" / "metrics.jsonl").size(), 4U);
}

TEST(Resume, AfterAKillWithTheSameBits) {
  const ScratchDir dir;
  // A rate that is another one in every step: a schedule that began again would show.
  const auto scheduled = [&](const fs::path& run) {
    return with(with(small_run(run), kGpuPeak),
                {"--lr-warmup-iters", "3", "--lr-decay-style", "cosine"});
  };
  ASSERT_EQ(run_miles(scheduled(dir / "whole")).exit_code, 0);
  const auto expected = numbers_of(dir / "whole");
  for (const int lines : {2, 4}) {
    const fs::path run = dir / fmt::format("killed{}", lines),
                   save = dir / fmt::format("save{}", lines);
    const auto flags = with(scheduled(run), {"--save", save.string(), "--save-interval", "1"});
    run_and_signal(flags, {.path = run / "metrics.jsonl", .lines = lines});
    const Outcome outcome = run_miles(with(flags, {"--load", save.string()}));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.log;
    EXPECT_NE(outcome.log.find("resumed from"), std::string::npos);
    EXPECT_EQ(numbers_of(run), expected) << "killed after " << lines;
  }
}

TEST(Resume, CheckpointsOfAnotherRunAreNeitherMixedWithItsOwnNorRemoved) {
  const ScratchDir dir;
  const std::string one = (dir / "one").string(), other = (dir / "other").string();
  const std::vector<std::string> each = {"--save-interval", "1"};
  ASSERT_EQ(run_miles(with(with(small_run(dir / "run1"), each),
                           {"--save", one, "--num-rollout", "2", "--rollout-seed", "7"}))
                .exit_code,
            0);
  const auto later = with(with(small_run(dir / "run2"), each), {"--rollout-seed", "8"});
  ASSERT_EQ(run_miles(with(later, {"--save", other, "--num-rollout", "4"})).exit_code, 0);
  // Later than any checkpoint there, and yet not their run.
  const Outcome refused = run_miles(with(
      later, {"--num-rollout", "5", "--load", other, "--save", one, "--save-total-limit", "1"}));
  EXPECT_EQ(refused.exit_code, 2) << refused.log;
  EXPECT_NE(refused.log.find("iter_0000000 there is of another run"), std::string::npos)
      << refused.log;
  EXPECT_TRUE(fs::exists(dir / "one" / "iter_0000000"));
  EXPECT_TRUE(fs::exists(dir / "one" / "iter_0000001"));
}

/// The rollouts of metrics.jsonl with their evaluation, if any, in order.
std::vector<std::string> rows_of(const fs::path& run_dir) {
  std::vector<std::string> rows;
  for (const auto& line : json_lines(run_dir / "metrics.jsonl"))
    rows.push_back(line["rollout_id"].dump() +
                   (line.contains("eval/sums") ? " eval " + line["eval/sums"].dump() : ""));
  return rows;
}

TEST(Resume, AKillBetweenCheckpointAndEvaluationLosesNeitherRowNorResult) {
  const ScratchDir dir;
  const auto evaluated = [&](const fs::path& run) {
    return with(
        with(small_run(run), kGpuPeak),
        {"--eval-interval", "2", "--eval-prompt-data", "sums",
         "synthetic:addition?max=9&split=eval&count=20", "--n-samples-per-eval-prompt", "100"});
  };
  ASSERT_EQ(run_miles(evaluated(dir / "whole")).exit_code, 0);
  const auto rows = rows_of(dir / "whole");
  ASSERT_EQ(rows.size(), 7);  // one before training
  for (const char* iteration : {"iter_0000001", "iter_0000003"}) {
    const fs::path run = dir / (std::string("run-") + iteration),
                   save = dir / (std::string("save-") + iteration);
    const auto flags = with(evaluated(run), {"--save", save.string(), "--save-interval", "1"});
    // An evaluation of 2000 samples follows the checkpoint.
    run_and_signal(flags, {.path = save / iteration / "run_state.json"});
    EXPECT_FALSE(json_lines(run / "metrics.jsonl").back().contains("eval/sums"))
        << "killed too late";
    const Outcome outcome = run_miles(with(flags, {"--load", save.string()}));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.log;
    EXPECT_EQ(rows_of(run), rows);
    EXPECT_EQ(numbers_of(run), numbers_of(dir / "whole"));
  }
}

TEST(Resume, AnEvaluationOnRecordIsNotDoneAgain) {
  const ScratchDir dir;
  const auto flags =
      with(with(small_run(dir / "run"), kEvaluated), {"--save", (dir / "save").string()});
  ASSERT_EQ(run_miles(with(flags, {"--num-rollout", "4"})).exit_code, 0);
  const auto rows = rows_of(dir / "run");
  const Outcome outcome = run_miles(
      with(flags, {"--load", (dir / "save").string(), "--debug-exit-after-rollout", "5"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.log;
  EXPECT_EQ(outcome.log.find("eval sums"), std::string::npos) << outcome.log;
  auto now = rows_of(dir / "run");
  ASSERT_EQ(now.size(), rows.size() + 1);
  now.pop_back();
  EXPECT_EQ(now, rows);
}

TEST(Resume, ALongerRunGoesOnUnlessTheLearningRateWouldBeAnother) {
  const ScratchDir dir;
  const auto flags = with(small_run(dir / "run"), {"--save", (dir / "save").string()});
  const auto on = with(flags, {"--load", (dir / "save").string(), "--num-rollout", "8"});
  ASSERT_EQ(run_miles(flags).exit_code, 0);
  EXPECT_EQ(run_miles(on).exit_code, 0);
  EXPECT_EQ(json_lines(dir / "run" / "metrics.jsonl").size(), 8);

  const std::vector<std::string> linear = {"--lr-decay-style", "linear",
                                           "--run-dir",        (dir / "linear").string(),
                                           "--save",           (dir / "linear-save").string()};
  ASSERT_EQ(run_miles(with(flags, linear)).exit_code, 0);
  const auto linear_on = with(with(on, linear), {"--load", (dir / "linear-save").string()});
  const Outcome refused = run_miles(linear_on);
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_NE(refused.log.find("--lr-decay-iters was 6 when it was saved and is 8 now"),
            std::string::npos)
      << refused.log;
  EXPECT_EQ(run_miles(with(linear_on, {"--lr-decay-iters", "6"})).exit_code, 0);
}

TEST(Resume, SaysWhatRoundsDifferentlyFromNowOn) {
  const ScratchDir dir;
  const auto flags = with(small_run(dir / "run"), {"--save", (dir / "save").string()});
  ASSERT_EQ(run_miles(with(flags, {"--num-rollout", "2"})).exit_code, 0);
  const Outcome other =
      run_miles(with(flags, {"--load", (dir / "save").string(), "--max-tokens-per-gpu", "20"}));
  EXPECT_EQ(other.exit_code, 0) << other.log;
  EXPECT_NE(other.log.find("--max-tokens-per-gpu was 112 when it was saved and is 20 now"),
            std::string::npos)
      << other.log;
}

TEST(Resume, NeedsTheReferenceThatItHad) {
  const ScratchDir dir;
  const auto flags = with(small_run(dir / "run"), {"--save", (dir / "save").string(),
                                                   "--use-kl-loss", "--kl-loss-coef", "0.1"});
  ASSERT_EQ(run_miles(with(flags, {"--num-rollout", "2"})).exit_code, 0);
  const auto on = with(flags, {"--load", (dir / "save").string()});
  const Outcome refused = run_miles(with(on, {"--seed", "5"}));  // of the random first weights
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_NE(refused.log.find("reference weights"), std::string::npos) << refused.log;
  EXPECT_EQ(run_miles(on).exit_code, 0);
}

TEST(Checkpoints, ARefusedRunLeavesRecordsAlone) {
  const ScratchDir dir;
  const auto flags = with(small_run(dir / "run"), {"--save", (dir / "save").string()});
  ASSERT_EQ(run_miles(flags).exit_code, 0);
  const std::string metrics = read_file(dir / "run" / "metrics.jsonl");
  // The checkpoint is of a float32 run.
  const Outcome refused =
      run_miles(with(flags, {"--load", (dir / "save").string(), "--dtype", "bfloat16"}));
  EXPECT_EQ(refused.exit_code, 3) << refused.log;
  EXPECT_EQ(read_file(dir / "run" / "metrics.jsonl"), metrics);
}

std::set<std::string> names_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory))
    names.insert(entry.path().filename().string());
  return names;
}

const char* const kLatest = "latest_checkpointed_iteration.txt";

TEST(Checkpoints, TheLimitKeepsTheNewest) {
  const ScratchDir dir;
  const auto flags =
      with(small_run(dir / "run"),
           {"--save", (dir / "save").string(), "--save-interval", "1", "--save-total-limit", "2"});
  ASSERT_EQ(run_miles(flags).exit_code, 0);
  EXPECT_EQ(names_in(dir / "save"),
            (std::set<std::string>{"iter_0000004", "iter_0000005", kLatest}));
}

TEST(Checkpoints, AnotherRunsAreNeverWrittenOver) {
  const ScratchDir dir;
  const auto flags = with(small_run(dir / "run"), {"--save", (dir / "save").string()});
  ASSERT_EQ(run_miles(flags).exit_code, 0);
  const std::string metrics = read_file(dir / "run" / "metrics.jsonl");
  const auto longer = with(flags, {"--num-rollout", "9"});
  const Outcome fresh = run_miles(longer);
  EXPECT_EQ(fresh.exit_code, 2) << fresh.log;
  EXPECT_NE(fresh.log.find("iter_0000005"), std::string::npos) << fresh.log;
  EXPECT_NE(fresh.log.find("--load " + (dir / "save").string()), std::string::npos) << fresh.log;
  EXPECT_EQ(read_file(dir / "run" / "metrics.jsonl"), metrics);
  EXPECT_EQ(run_miles(with(longer, {"--load", (dir / "save").string()})).exit_code, 0);
}

TEST(Checkpoints, WhatAKillLeftIsClearedAwayAndWhatSteppedAsideComesBack) {
  const ScratchDir dir;
  const fs::path save = dir / "save";
  const auto flags =
      with(small_run(dir / "run"), {"--save", save.string(), "--save-interval", "2"});
  ASSERT_EQ(run_miles(with(flags, {"--num-rollout", "4"})).exit_code, 0);
  fs::rename(save / "iter_0000003", save / ".old-iter_0000003");  // the new one never came
  fs::copy(save / "iter_0000001", save / ".old-iter_0000001", fs::copy_options::recursive);
  fs::create_directories(save / ".writing-iter_0000007" / "hf");
  fs::create_directories(save / ".removing-iter_0000000" / "hf");
  fs::create_directories(save / ".old-notes");  // not ours
  const Outcome resumed = run_miles(with(flags, {"--load", save.string()}));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.log;
  EXPECT_NE(resumed.log.find("resumed from " + (save / ".old-iter_0000003").string()),
            std::string::npos)
      << resumed.log;
  EXPECT_EQ(names_in(save), (std::set<std::string>{"iter_0000001", "iter_0000003", "iter_0000005",
                                                   ".old-notes", kLatest}));
}

TEST(Checkpoints, AFullDiskLeavesTheOneBefore) {
  const ScratchDir dir;
  // The one before goes when the new one is there, not sooner.
  const auto flags =
      with(small_run(dir / "run"),
           {"--save", (dir / "save").string(), "--save-interval", "1", "--save-total-limit", "1"});
  ASSERT_EQ(run_miles(with(flags, {"--num-rollout", "1"})).exit_code, 0);
  const auto size = fs::file_size(dir / "save" / "iter_0000000" / "trainer.safetensors");
  const Outcome full =
      run_miles(with(flags, {"--load", (dir / "save").string()}), static_cast<int64_t>(size) / 2);
  EXPECT_EQ(full.exit_code, 3) << full.log;
  EXPECT_EQ(names_in(dir / "save"), (std::set<std::string>{"iter_0000000", kLatest}));
  const Outcome resumed = run_miles(with(flags, {"--load", (dir / "save").string()}));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.log;
  std::vector<int64_t> rows;
  for (const auto& line : json_lines(dir / "run" / "metrics.jsonl"))
    rows.push_back(line["rollout_id"]);
  EXPECT_EQ(rows, (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
}

TEST(Checkpoints, ADamagedOneSaysHowToGoOnFromTheOneBefore) {
  const ScratchDir dir;
  const fs::path save = dir / "save", newest = save / "iter_0000003";
  const auto flags =
      with(small_run(dir / "run"), {"--save", save.string(), "--save-interval", "2"});
  ASSERT_EQ(run_miles(with(flags, {"--num-rollout", "4"})).exit_code, 0);
  const auto refused = [&](const std::string& way) {
    const Outcome outcome = run_miles(with(flags, {"--load", save.string()}));
    EXPECT_EQ(outcome.exit_code, 3) << outcome.log;
    EXPECT_NE(outcome.log.find(way), std::string::npos) << outcome.log;
    EXPECT_EQ(outcome.log.find("fetch"), std::string::npos) << outcome.log;
  };
  const std::string before = (save / "iter_0000001").string(),
                    way =
                        fmt::format("Move {} away and go on from the one before it with --load {}",
                                    newest.string(), before);
  const std::string state = read_file(newest / "run_state.json");
  write_file_atomically(newest / "run_state.json", state.substr(0, state.size() / 2));
  refused(way);
  std::string changed = state;
  const size_t digit = changed.find("\"rollout_id\": 3");
  ASSERT_NE(digit, std::string::npos) << state;
  changed[digit + std::string("\"rollout_id\": ").size()] = '2';
  write_file_atomically(newest / "run_state.json", changed);
  refused("run_state.json: it is damaged: its checksum is ");
  refused(way);
  write_file_atomically(newest / "run_state.json", state);
  std::string trainer = read_file(newest / "trainer.safetensors");
  trainer[trainer.size() - 1000] ^= 1;
  write_file_atomically(newest / "trainer.safetensors", trainer);
  refused("is damaged: its checksum is ");
  refused(way);
  for (const int64_t length : {int64_t{100000}, int64_t{100}, int64_t{4}}) {
    fs::resize_file(newest / "trainer.safetensors", static_cast<uintmax_t>(length));
    refused("it was cut short: go on from another checkpoint. " + way);
  }
  fs::rename(newest, dir / "away");
  fs::copy(before, dir / "kept", fs::copy_options::recursive);
  const Outcome resumed = run_miles(with(flags, {"--load", before}));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.log;
  // The only one.
  fs::remove_all(save);
  fs::create_directories(save);
  fs::rename(dir / "kept", before);
  fs::resize_file(fs::path(before) / "trainer.safetensors", 4);
  refused("There is no checkpoint before it");
}

TEST(Checkpoints, AHalfWrittenOneIsNeverChosen) {
  const ScratchDir dir;
  const auto flags =
      with(small_run(dir / "run"), {"--save", (dir / "save").string(), "--save-interval", "2"});
  ASSERT_EQ(run_miles(with(flags, {"--num-rollout", "2"})).exit_code, 0);
  fs::create_directories(dir / "save" / "iter_0000009");  // half-written: no run_state.json
  const Outcome resumed = run_miles(with(flags, {"--load", (dir / "save").string()}));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.log;
  EXPECT_NE(resumed.log.find("iter_0000001"), std::string::npos) << resumed.log;
}

}  // namespace
}  // namespace miles::test
