#include "observe/progress.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>
#include <vector>

namespace miles {
namespace {

/// A terminal or a log with a clock that stands until it is moved.
struct Stage {
  double now = 100;
  std::vector<std::string> written;

  ProgressOutput output(ProgressOutput::Style style) {
    return {.style = style,
            .columns = 60,
            .write = [this](std::string_view text) { written.emplace_back(text); },
            .now = [this] { return now; }};
  }
  ProgressOutput lines() { return output(ProgressOutput::Style::lines); }
  ProgressOutput bar() { return output(ProgressOutput::Style::bar); }
};

TEST(Progress, SaysNothingOfWhatIsDoneWithinTwoSeconds) {
  Stage stage;
  for (const ProgressOutput& output : {stage.lines(), stage.bar()}) {
    Progress progress("quick", 10, "tensors", output);
    for (int i = 0; i < 10; ++i) {
      stage.now += 0.19;
      progress.advance();
    }
  }
  EXPECT_TRUE(stage.written.empty());
}

TEST(Progress, ALogGetsALineAfterTwoSecondsThenAtSensibleIntervals) {
  Stage stage;
  {
    Progress progress("loading weights", 1000, "tensors", stage.lines());
    for (int i = 0; i < 1000; ++i) {  // 40 s, 10% every 4 s
      stage.now += 0.04;
      progress.advance();
    }
  }
  ASSERT_EQ(stage.written.size(), 9U);  // at 2, 7, … 37 s, and the last word
  EXPECT_EQ(stage.written[0], "loading weights: 50 of 1000 (5%) tensors");
  EXPECT_EQ(stage.written[8], "loading weights: done, 1000 of 1000 tensors in 40.0 s");
}

TEST(Progress, WithoutMuchProgressALogHearsOfItEveryHalfMinute) {
  Stage stage;
  Progress progress("training", 1000, "rollouts", stage.lines());
  for (int i = 0; i < 10; ++i) {
    stage.now += 10;
    progress.advance();
  }
  EXPECT_EQ(stage.written.size(), 4U);  // at 10, 40, 70 and 100 s
}

TEST(Progress, ATerminalSeesABarRedrawnInPlaceAndNoWiderThanItself) {
  Stage stage;
  {
    Progress progress("loading", 4 << 20, "bytes", stage.bar());
    stage.now += 4;
    progress.advance(1 << 20);
    progress.note("with a remark that is longer than the terminal is wide");  // too soon to redraw
    stage.now += 1;
    progress.advance(1 << 20);
  }
  ASSERT_EQ(stage.written.size(), 3U);
  EXPECT_EQ(stage.written[0],
            "\rloading [######..................] 1.0 MiB of 4.0 MiB (25%)\x1b[K");
  EXPECT_EQ(stage.written[1].size(), 1 + 59 + 3U);
  EXPECT_TRUE(stage.written[2].starts_with("\r\x1b[Kloading: done, 2.0 MiB of 4.0 MiB (50%), "));
  EXPECT_TRUE(stage.written[2].ends_with("\n"));
}

TEST(Progress, NotesFollowTheCounts) {
  Stage stage;
  Progress progress("generating", 8, "samples", stage.lines());
  progress.note("reward 0.53");
  stage.now += 3;
  progress.advance(2);
  ASSERT_EQ(stage.written.size(), 1U);
  EXPECT_EQ(stage.written[0], "generating: 2 of 8 (25%) samples, reward 0.53");
}

TEST(Progress, AnUnknownTotalIsCountedWithoutAShare) {
  Stage stage;
  {
    Progress progress("reading", 0, "rows", stage.lines());
    stage.now += 3;
    progress.advance(5);
  }
  EXPECT_EQ(stage.written,
            (std::vector<std::string>{"reading: 5 rows", "reading: done, 5 rows in 3.0 s"}));
}

TEST(Progress, WorkThatThrowsIsNotCalledDone) {
  Stage stage;
  try {
    Progress progress("saving", 10, "tensors", stage.lines());
    stage.now += 3;
    throw std::runtime_error("disk full");
  } catch (const std::runtime_error&) {
  }
  ASSERT_EQ(stage.written.size(), 1U);
  EXPECT_EQ(stage.written[0], "saving: stopped, 0 of 10 (0%) tensors in 3.0 s");
}

TEST(Progress, CountsWhatSeveralThreadsDo) {
  Stage stage;
  {
    Progress progress("copying", 2000, "blocks", stage.lines());
    auto work = [&] {
      for (int i = 0; i < 1000; ++i) progress.advance();
    };
    std::thread other(work);
    work();
    other.join();
    stage.now += 5;
  }
  EXPECT_EQ(stage.written.at(0), "copying: done, 2000 of 2000 blocks in 5.0 s");
}

}  // namespace
}  // namespace miles
