// Whose records a run directory holds, and what becomes of them when a run goes on there.
#include <gtest/gtest.h>

#include "base/file.h"
#include "tests/program/program.h"
#include "tests/support/shared.h"

namespace miles::test {
namespace {

namespace fs = std::filesystem;

TEST(Records, OfAnotherRunAreNotCutWhereACheckpointGoesOn) {
  const ScratchDir dir;
  const auto saved = [&](const char* run, const char* save) {
    return with(small_run(dir / run), {"--save", (dir / save).string()});
  };
  ASSERT_EQ(run_miles(with(saved("a", "save_a"), {"--num-rollout", "2"})).exit_code, 0);
  ASSERT_EQ(run_miles(saved("b", "save_b")).exit_code, 0);
  const auto of_b = numbers_of(dir / "b");
  // The run of a goes on, by mistake in b's directory.
  const Outcome resumed =
      run_miles(with(saved("b", "save_a"), {"--load", (dir / "save_a").string()}));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.log;
  EXPECT_NE(resumed.log.find("previous-1"), std::string::npos) << resumed.log;
  EXPECT_EQ(numbers_of(dir / "b" / "previous-1"), of_b);
  EXPECT_TRUE(fs::exists(dir / "b" / "previous-1" / "run.json"));
  EXPECT_EQ(json_lines(dir / "b" / "metrics.jsonl").front()["rollout_id"], 2);
  EXPECT_EQ(json_lines(dir / "b" / "metrics.jsonl").size(), 4);
}

TEST(Records, NoTwoRunsWriteToOneDirectoryAtOnce) {
  const ScratchDir dir;
  for (const char* flag : {"--run-dir", "--save"}) {
    const std::string shared = (dir / flag).string();
    auto flags = with(small_run(dir / "alone"), {"--save", (dir / "save").string()});
    flags = with(flags, {flag, shared});
    {
      const ClaimedDirectory other(shared, flag);
      const Outcome refused = run_miles(flags);
      EXPECT_EQ(refused.exit_code, 3) << refused.log;
      EXPECT_NE(refused.log.find(std::string(flag) + ' ' + shared + ": another run"),
                std::string::npos)
          << refused.log;
      EXPECT_TRUE(fs::is_empty(shared));
    }
    EXPECT_EQ(run_miles(flags).exit_code, 0);
    fs::remove_all(dir / "save");
  }
  const std::string both = (dir / "both").string();
  EXPECT_EQ(run_miles(with(small_run(both), {"--save", both})).exit_code, 0);
}

TEST(Records, WhereNothingCanBeSavedTheRunDoesNotBegin) {
  const ScratchDir dir;
  write_file_atomically(dir / "file", "");
  const Outcome refused =
      run_miles(with(small_run(dir / "run"), {"--save", (dir / "file" / "save").string()}));
  EXPECT_EQ(refused.exit_code, 3) << refused.log;
  EXPECT_NE(refused.log.find("cannot create the directory"), std::string::npos) << refused.log;
  EXPECT_FALSE(fs::exists(dir / "run" / "metrics.jsonl"));
}

TEST(Records, TheConfigStaysWhatTheRunWasStartedWith) {
  const ScratchDir dir;
  const auto flags = with(small_run(dir / "run"), {"--save", (dir / "save").string()});
  ASSERT_EQ(run_miles(with(flags, {"--num-rollout", "2"})).exit_code, 0);
  const std::string first = read_file(dir / "run" / "config.toml");
  const auto written = fs::last_write_time(dir / "run" / "config.toml");
  const auto on = with(flags, {"--load", (dir / "save").string()});
  ASSERT_EQ(run_miles(with(on, {"--num-rollout", "2"})).exit_code, 0);
  EXPECT_EQ(read_file(dir / "run" / "config.toml"), first);
  EXPECT_EQ(fs::last_write_time(dir / "run" / "config.toml"), written);

  const Outcome longer = run_miles(with(on, {"--num-rollout", "4"}));
  ASSERT_EQ(longer.exit_code, 0) << longer.log;
  EXPECT_NE(longer.log.find("config-before-rollout-2.toml"), std::string::npos) << longer.log;
  EXPECT_EQ(read_file(dir / "run" / "config-before-rollout-2.toml"), first);
  EXPECT_NE(read_file(dir / "run" / "config.toml").find("num-rollout = 4"), std::string::npos);

  // With the next run it all steps aside.
  ASSERT_EQ(run_miles(small_run(dir / "run")).exit_code, 0);
  EXPECT_FALSE(fs::exists(dir / "run" / "config-before-rollout-2.toml"));
  EXPECT_EQ(read_file(dir / "run" / "previous-1" / "config-before-rollout-2.toml"), first);
}

TEST(Records, ARunThatSavesNothingSaysSoOnce) {
  const ScratchDir dir;
  const std::string says = "no checkpoint will be written";
  const auto times = [&](const Outcome& outcome) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
    int count = 0;
    for (size_t at = outcome.log.find(says); at != std::string::npos;
         at = outcome.log.find(says, at + 1))
      ++count;
    return count;
  };
  const auto flags = small_run(dir / "run");
  EXPECT_EQ(times(run_miles(flags)), 1);
  EXPECT_EQ(times(run_miles(with(flags, {"--save", (dir / "save").string()}))), 0);
  EXPECT_EQ(
      times(run_miles(with(flags, {"--load", (dir / "save").string(), "--num-rollout", "8"}))), 1);
}

TEST(Records, AReportOfACpuRunSpeaksOfNoGpu) {
  if (std::getenv("MILES_TEST_DEVICE") != nullptr) GTEST_SKIP() << "a run on a GPU does";
  const ScratchDir dir;
  ASSERT_EQ(run_miles(small_run(dir / "run")).exit_code, 0);
  std::string report = read_file(dir / "run" / "report.html");
  report.resize(report.find("<h2>Metrics"));  // Miles' names have "gpu" in them
  EXPECT_EQ(report.find("GPU"), std::string::npos);
  EXPECT_NE(report.find("device peak, of "), std::string::npos);
  EXPECT_EQ(report.find("var(--grey-0)"), std::string::npos) << "a tag that no colour is for";
}

}  // namespace
}  // namespace miles::test
