#include "observe/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/file.h"
#include "observe/html.h"
#include "observe/json_lines.h"
#include "observe/metrics.h"
#include "observe/run_record.h"
#include "observe/svg_chart.h"
#include "tests/support/shared.h"

namespace miles {
namespace {

constexpr int64_t kGiB = 1LL << 30;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

Metrics metrics_of(int rollout) {
  Metrics metrics;
  metrics.set("rollout/raw_reward", 0.5 + 0.3 * std::sin(rollout));
  metrics.set_spread("rollout/response_len", std::vector<double>{100, 200, 600});
  metrics.set("perf/rollout_time", 20);
  metrics.set("perf/train_time", 10);
  metrics.set("perf/step_time", 31);
  metrics.set("train/grad_norm", rollout % 7 == 0 ? std::nan("") : 0.4);
  metrics.set("train/entropy_loss", 2.5);
  metrics.set("train/loss", 1e-9);  // on policy
  if (rollout % 5 == 0) {
    metrics.set("eval/gsm8k", 0.6);
    metrics.set("eval/gsm8k-truncated_ratio", 0.2);
    metrics.set("eval/response_len-truncated_ratio", 0.4);  // a set of that name
  }
  return metrics;
}

MemoryEvent event_of(const std::string& name, int rollout, double time) {
  return {.event = name,
          .rollout_id = rollout,
          .seconds = 0.5,
          .time = time,
          .device_bytes = {{"actor.params", 4 * kGiB}, {"rollout.kv_cache", 8 * kGiB}},
          .host_bytes = {{"store.weights", 6 * kGiB}},
          .device_total = 12 * kGiB,
          .host_total = 6 * kGiB,
          .device_peak = 14 * kGiB,
          .host_peak = 7 * kGiB,
          .device_at_peak = {{"actor.params", 4 * kGiB},
                             {"actor.activations", 3 * kGiB},
                             {"rollout.kv_cache", 7 * kGiB}},
          .host_at_peak = {{"store.weights", 7 * kGiB}},
          .device_budget = 20 * kGiB,
          .host_budget = 1000 * kGiB,
          .resident_set_bytes = 7 * kGiB};
}

struct Extent {
  int rollouts = 0;
  int events_per_rollout = 0;
};

void write_run(const std::filesystem::path& dir, const Extent& extent) {
  JsonLines metrics(dir / "metrics.jsonl", JsonLines::Open::fresh);
  JsonLines memory(dir / "memory.jsonl", JsonLines::Open::fresh);
  for (int i = 0; i < extent.rollouts; ++i) {
    metrics.append(metrics_of(i).to_json(i));
    for (int e = 0; e < extent.events_per_rollout; ++e)
      memory.append(to_json(event_of(e == 0 ? "actor.onload" : "actor.offload", i, 31 * i + e)));
  }
}

std::string report_of(const std::filesystem::path& dir) {
  write_report(dir);
  return read_file(dir / "report.html");
}

TEST(RunRecord, TellsScoresOfEvaluationsFromWhatStandsBesideThem) {
  const test::ScratchDir dir;
  write_run(dir.path(), {.rollouts = 2, .events_per_rollout = 0});
  EXPECT_EQ(read_run(dir.path()).eval_scores(),
            (std::vector<std::string>{"eval/gsm8k", "eval/response_len-truncated_ratio"}));
}

TEST(Report, AGradientOfNothingIsShown) {
  const test::ScratchDir dir;
  JsonLines metrics(dir / "metrics.jsonl", JsonLines::Open::fresh);
  for (int i = 0; i < 3; ++i) {
    Metrics row;
    row.set("train/grad_norm", 0);
    metrics.append(row.to_json(i));
  }
  EXPECT_TRUE(contains(report_of(dir.path()), "<figcaption>Gradient norm"));
}

TEST(Report, ShowsChartsTablesAndTheConfigurationVerbatim) {
  const test::ScratchDir dir;
  write_run(dir.path(), {.rollouts = 12, .events_per_rollout = 2});
  write_file_atomically(dir / "config.toml", "model = \"<tiny> & co\"\n");
  const std::string report = report_of(dir.path());
  for (const char* title : {"Reward", "Response length", "Step time", "Gradient norm", "Entropy",
                            "Device memory, whole run", "Host memory, whole run"})
    EXPECT_TRUE(contains(report, std::string("<figcaption>") + title)) << title;
  EXPECT_FALSE(contains(report, "<figcaption>Loss"));
  EXPECT_TRUE(contains(report, "model = &quot;&lt;tiny&gt; &amp; co&quot;\n"));
  EXPECT_TRUE(contains(report,
                       "<td class=\"name\">actor.onload</td><td class=\"n\">12</td>"
                       "<td class=\"n\">500.0 ms</td><td class=\"n\">12.0 GiB</td>"
                       "<td class=\"n\">14.0 GiB</td>"));
  EXPECT_TRUE(contains(report, "budget 20.0 GiB"));
  EXPECT_TRUE(contains(report, "The budget of 1000.0 GiB is far above."));
  EXPECT_TRUE(contains(report, "peak 14.0 GiB"));
  EXPECT_TRUE(contains(report, "actor.activations")) << "held between two events alone";
}

TEST(Report, SaysWhichDeviceItWas) {
  const test::ScratchDir dir;
  write_run(dir.path(), {.rollouts = 2, .events_per_rollout = 2});
  write_run_info(dir.path(), {.run_id = "1", .device = "Some <CPU>", .device_is_gpu = false});
  const std::string cpu = report_of(dir.path());
  EXPECT_TRUE(contains(cpu, "Rollouts 0 to 1, on Some &lt;CPU&gt;"));
  EXPECT_TRUE(contains(cpu, "<span>device peak, of 20.0 GiB</span>"));
  EXPECT_TRUE(contains(cpu, "Device memory, whole run"));
  EXPECT_FALSE(contains(cpu, "GPU"));
  write_run_info(dir.path(), {.run_id = "1", .device = "NVIDIA H200", .device_is_gpu = true});
  const std::string gpu = report_of(dir.path());
  EXPECT_TRUE(contains(gpu, "on NVIDIA H200"));
  EXPECT_TRUE(contains(gpu, "GPU memory, whole run"));
  EXPECT_TRUE(contains(gpu, "<th class=\"n\">GPU peak</th>"));
}

TEST(Report, LoadsNothingFromElsewhere) {
  const test::ScratchDir dir;
  write_run(dir.path(), {.rollouts = 3, .events_per_rollout = 2});
  const std::string report = report_of(dir.path());
  for (const char* loader : {"http:", "https:", "<script", "@import", "url(", "src=", "href="})
    EXPECT_FALSE(contains(report, loader)) << loader;
  EXPECT_FALSE(contains(report, "nan"));
}

TEST(Report, CopesWithARunThatHasBarelyBegun) {
  const test::ScratchDir dir;
  EXPECT_TRUE(contains(report_of(dir.path()), "No rollout has finished yet"));
  write_run(dir.path(), {});
  EXPECT_TRUE(contains(report_of(dir.path()), "no event in it yet"));
  write_run(dir.path(), {.rollouts = 1, .events_per_rollout = 1});
  const std::string report = report_of(dir.path());
  EXPECT_TRUE(contains(report, "Rollout 0"));
  EXPECT_FALSE(contains(report, "nan"));
  EXPECT_FALSE(contains(report, "inf"));
}

TEST(Report, CopesWithoutMemoryTimelineAndWithOtherMetrics) {
  const test::ScratchDir dir;
  JsonLines lines(dir / "metrics.jsonl", JsonLines::Open::fresh);
  lines.append({{"rollout_id", 0}, {"my/metric", 1.5}, {"text", "not a metric"}, {"bad", nullptr}});
  const std::string report = report_of(dir.path());
  EXPECT_TRUE(contains(report, "<td class=\"name\">my/metric</td><td class=\"n\">1.5</td>"));
  EXPECT_EQ(count_of(report, "<figure"), 0U);
  EXPECT_TRUE(contains(report, "This run has no memory.jsonl"));
}

TEST(Report, StaysSmallForALongRun) {
  const test::ScratchDir dir;
  write_run(dir.path(), {.rollouts = 5000, .events_per_rollout = 4});
  const std::string report = report_of(dir.path());
  EXPECT_LT(report.size(), 2U << 20);
  EXPECT_TRUE(contains(report, "Device memory, last 3 rollouts"));
  EXPECT_TRUE(contains(report, "rollouts 0 … 12"));
  EXPECT_TRUE(contains(report, "20001 events share"));
}

TEST(Report, ADirectoryThatIsNotThereOrARuinedLineIsNamed) {
  const test::ScratchDir dir;
  EXPECT_THROW(write_report(dir / "none"), Error);
  write_file_atomically(dir / "metrics.jsonl", "{\"rollout_id\":0}\n{\"reward\":1}\n");
  try {
    write_report(dir.path());
    FAIL() << "a line without rollout_id was accepted";
  } catch (const Error& error) {
    EXPECT_TRUE(contains(error.what(), "metrics.jsonl:2")) << error.what();
  }
}

TEST(RunRecord, MergesLinesOfARolloutAndFillsGapsWithNaN) {
  const test::ScratchDir dir;
  write_file_atomically(dir / "metrics.jsonl",
                        "{\"rollout_id\":4,\"a\":1}\n{\"rollout_id\":2,\"b\":5}\n"
                        "{\"rollout_id\":4,\"a\":2,\"b\":null}\n{\"rollout_id\":9,\"a\"");
  const RunRecord run = read_run(dir.path());
  EXPECT_EQ(run.rollout_ids, (std::vector<int64_t>{2, 4}));
  EXPECT_TRUE(std::isnan(run.metrics.at("a")[0]));
  EXPECT_EQ(run.metrics.at("a")[1], 2);
  ASSERT_EQ(run.metrics.at("b").size(), 2U);
  EXPECT_TRUE(std::isnan(run.metrics.at("b")[1]));
  EXPECT_EQ(run.find("c"), nullptr);
}

TEST(RunRecord, TimesAscendAcrossAResume) {
  const test::ScratchDir dir;
  JsonLines lines(dir / "memory.jsonl", JsonLines::Open::fresh);
  for (const double time : {10.0, 20.0, 3.0, 8.0}) lines.append(to_json(event_of("e", 0, time)));
  const RunRecord run = read_run(dir.path());
  std::vector<double> times;
  for (const MemoryEvent& event : run.memory) times.push_back(event.time);
  EXPECT_EQ(times, (std::vector<double>{10, 20, 20.5, 25.5}));
}

TEST(SvgChart, EscapesNamesAndLeavesGapsOut) {
  const double gap = std::numeric_limits<double>::quiet_NaN();
  const std::string chart = svg_chart({.title = "a < b",
                                       .x_label = "rollout",
                                       .y_label = "y",
                                       .x = {0, 1, 2, 3},
                                       .series = {{"x & y", "blue-1", Mark::line, {1, gap, 2, 3}},
                                                  {"z", "grey-0", Mark::area, {1, 1, gap, 1}}}});
  EXPECT_TRUE(contains(chart, "a &lt; b"));
  EXPECT_TRUE(contains(chart, "x &amp; y: 2"));
  EXPECT_FALSE(contains(chart, "nan"));
  EXPECT_EQ(count_of(chart, "<rect x="), 4U);  // one hover strip a point
}

TEST(SvgChart, StacksAreasOnEachOther) {
  const std::string chart = svg_chart(
      {.title = "t",
       .spacing = Spacing::steps,
       .x = {0, 1},
       .series = {{"a", "blue-1", Mark::area, {2, 2}}, {"b", "blue-2", Mark::area, {2, 2}}},
       .width = 172,     // 100 pixels of plot
       .height = 152});  // same
  // The axis is 0 … 4 over pixels 112 … 12: a fills 112 … 62, b 62 … 12.
  EXPECT_TRUE(contains(chart, "M58.0 112.0H108.0V62.0H58.0Z"));
  EXPECT_TRUE(contains(chart, "M58.0 62.0H108.0V12.0H58.0Z"));
}

TEST(SvgChart, WithoutPointsSaysSo) {
  EXPECT_TRUE(contains(svg_chart({.title = "t"}), "nothing recorded"));
}

TEST(SvgChartDeathTest, SeriesOfAnotherLengthAreABug) {
  EXPECT_DEATH(svg_chart({.title = "t", .x = {0, 1}, .series = {{"a", "blue-1", Mark::line, {1}}}}),
               "1 values for 2 points");
}

TEST(Html, EscapesWhatCouldEndAnAttribute) {
  EXPECT_EQ(escape_html("<a href=\"x\">'&'"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;");
}

}  // namespace
}  // namespace miles
