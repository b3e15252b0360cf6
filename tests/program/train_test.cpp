// The program from outside: what a user runs, kills and resumes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "base/file.h"
#include "tests/program/program.h"
#include "tests/support/shared.h"
#include "tests/support/test_device.h"

namespace miles::test {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kCpuPeak = {"--colocate"};
const std::vector<std::string> kGpuPeak = {"--colocate", "--colocate-memory-peak-device", "gpu"};

const std::vector<std::string> kEvaluated = {"--eval-interval", "2", "--eval-prompt-data", "sums",
                                             "synthetic:addition?max=9&split=eval&count=20"};

std::vector<std::string> events_of(const fs::path& run_dir, int64_t rollout) {
  std::vector<std::string> names;
  for (const auto& line : json_lines(run_dir / "memory.jsonl"))
    if (line["rollout_id"] == rollout) names.push_back(line["event"]);
  return names;
}

TEST(Train, GivesTheSameBitsTwiceAndInEveryMemoryMode) {
  const ScratchDir dir;
  ASSERT_EQ(run_miles(small_run(dir / "a")).exit_code, 0);
  const auto expected = numbers_of(dir / "a");
  ASSERT_EQ(expected.size(), 6 + 48);
  ASSERT_EQ(run_miles(small_run(dir / "b")).exit_code, 0);
  EXPECT_EQ(numbers_of(dir / "b"), expected);
  ASSERT_EQ(run_miles(with(small_run(dir / "c"), kCpuPeak)).exit_code, 0);
  EXPECT_EQ(numbers_of(dir / "c"), expected);
  ASSERT_EQ(run_miles(with(small_run(dir / "d"), kGpuPeak)).exit_code, 0);
  EXPECT_EQ(numbers_of(dir / "d"), expected);
}

TEST(Train, IsExactlyOnPolicyInBothTypes) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    const ScratchDir dir;
    // A cache for two samples only forces preemption; chunks of 3 cut every prompt. A temperature
    // that one side forgot would show in the difference or in the ratio.
    const auto run =
        with(small_run(dir / "a"), {"--dtype", dtype, "--max-total-tokens", "28", "--page-size",
                                    "2", "--chunked-prefill-size", "3",
                                    "--check-weight-update-equal", "--rollout-temperature", "0.7"});
    const Outcome outcome = run_miles(with(run, kGpuPeak));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.log;
    for (const auto& line : json_lines(dir / "a" / "metrics.jsonl")) {
      EXPECT_EQ(line["train/train_rollout_logprob_abs_diff"], 0.0) << dtype;
      EXPECT_EQ(line["train/ppo_kl"], 0.0) << dtype;
    }
  }
}

TEST(Train, AnotherMicroBatchSizeChangesOnlyTheRounding) {
  const ScratchDir dir;
  ASSERT_EQ(run_miles(with(small_run(dir / "a"), {"--max-tokens-per-gpu", "14"})).exit_code, 0);
  ASSERT_EQ(run_miles(with(small_run(dir / "b"), {"--max-tokens-per-gpu", "100"})).exit_code, 0);
  const auto a = json_lines(dir / "a" / "metrics.jsonl"),
             b = json_lines(dir / "b" / "metrics.jsonl");
  const auto samples_a = json_lines(dir / "a" / "samples.jsonl");
  const auto samples_b = json_lines(dir / "b" / "samples.jsonl");
  EXPECT_NEAR(a[0]["train/grad_norm"].get<double>(), b[0]["train/grad_norm"].get<double>(),
              1e-4 * b[0]["train/grad_norm"].get<double>());
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(samples_a[i]["tokens"], samples_b[i]["tokens"]);
}

TEST(Train, KeepsTheOrderOfTheHandoff) {
  const ScratchDir dir;
  ASSERT_EQ(run_miles(with(small_run(dir / "gpu"), kGpuPeak)).exit_code, 0);
  EXPECT_EQ(events_of(dir / "gpu", 1),
            (std::vector<std::string>{
                "rollout.generate", "rollout.offload_kv", "actor.onload", "rollout.offload_weights",
                "actor.train", "actor.clear_memory", "rollout.onload_weights", "actor.offload",
                "actor.update_weights", "rollout.onload_kv"}));
  // Nobody generates after the last rollout.
  EXPECT_EQ(events_of(dir / "gpu", 5).back(), "actor.train");
  ASSERT_EQ(run_miles(with(small_run(dir / "cpu"), kCpuPeak)).exit_code, 0);
  EXPECT_EQ(events_of(dir / "cpu", 1),
            (std::vector<std::string>{"rollout.generate", "rollout.offload_kv",
                                      "rollout.offload_weights", "actor.onload", "actor.train",
                                      "actor.offload", "rollout.onload_weights",
                                      "actor.update_weights", "rollout.onload_kv"}));
}

int64_t device_peak_of(const fs::path& run_dir) {
  int64_t peak = 0;
  for (const auto& line : json_lines(run_dir / "memory.jsonl"))
    peak = std::max(peak, line["device_peak"].get<int64_t>());
  return peak;
}

TEST(Train, RefusesABudgetOneByteBelowThePlannedPeak) {
  const ScratchDir dir;
  const auto run = with(small_run(dir / "a"), kGpuPeak);
  const Outcome refused = run_miles(with(run, {"--gpu-memory-budget", "4096"}));
  EXPECT_EQ(refused.exit_code, 4);
  std::smatch need;
  ASSERT_TRUE(std::regex_search(refused.log, need, std::regex("needs [^(]*\\((\\d+) bytes\\)")))
      << refused.log;
  const int64_t bytes = std::stoll(need[1]);
  const Outcome one_less = run_miles(with(run, {"--gpu-memory-budget", std::to_string(bytes - 1)}));
  EXPECT_EQ(one_less.exit_code, 4);
  EXPECT_FALSE(fs::exists(dir / "a")) << "something was written before the refusal";
  const Outcome exact = run_miles(with(run, {"--gpu-memory-budget", std::to_string(bytes)}));
  EXPECT_EQ(exact.exit_code, 0) << exact.log;
  EXPECT_EQ(device_peak_of(dir / "a"), bytes);
}

TEST(Train, KeepsActivationsAsFarAsItsMemoryGoes) {
  const ScratchDir dir;
  // So many tokens that the trainer's activations have the peak.
  const auto large = [&](const std::string& name) {
    return with(with(small_run(dir / name), kGpuPeak),
                {"--rollout-batch-size", "8", "--rollout-max-response-len", "56",
                 "--max-running-requests", "1", "--num-rollout", "1"});
  };
  const auto job = [&](const std::string& name, const std::vector<std::string>& flags) {
    const Outcome outcome = run_miles(with(large(name), flags));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
    return outcome.log;
  };
  const auto recomputed = [](const std::string& log) {  // recomputed blocks, as the plan says
    std::smatch found;
    EXPECT_TRUE(std::regex_search(log, found, std::regex("; (\\d+) of 3 blocks are recomputed")))
        << log;
    return found.empty() ? std::string() : found[1].str();
  };
  EXPECT_EQ(recomputed(job("all", {"--recompute-num-layers", "3"})), "3");
  EXPECT_EQ(recomputed(job("none", {"--recompute-num-layers", "0"})), "0");
  EXPECT_EQ(numbers_of(dir / "none"), numbers_of(dir / "all"));
  const int64_t least = device_peak_of(dir / "all"), most = device_peak_of(dir / "none");
  // Left open, it costs nothing that was not said to be there.
  job("open", {});
  EXPECT_EQ(device_peak_of(dir / "open"), least);
  // A budget is filled: with what streams, then with activations.
  const int64_t plenty = 2 * most;
  EXPECT_EQ(recomputed(job("budget", {"--gpu-memory-budget", std::to_string(plenty)})), "0");
  EXPECT_GE(device_peak_of(dir / "budget"), most);
  EXPECT_LE(device_peak_of(dir / "budget"), plenty);
  EXPECT_EQ(numbers_of(dir / "budget"), numbers_of(dir / "all"));
  EXPECT_NE(read_file(dir / "budget" / "config.toml").find("recompute-num-layers = 0\n"),
            std::string::npos);
  if (test::on_cuda()) return;  // whose pages are larger than this model's activations
  ASSERT_GT(most, least);
  EXPECT_NE(recomputed(job("less", {"--gpu-memory-budget", std::to_string(most - 1)})), "0");
  EXPECT_EQ(numbers_of(dir / "less"), numbers_of(dir / "all"));
  const Outcome refused =
      run_miles(with(large("refused"), {"--gpu-memory-budget", std::to_string(most - 1),
                                        "--recompute-num-layers", "0"}));
  EXPECT_EQ(refused.exit_code, 4);
  EXPECT_NE(refused.log.find("\n  --recompute-num-layers 1 (instead of 0)\n"), std::string::npos)
      << refused.log;
}

TEST(Train, HoldsMemoryFlatOverManyRollouts) {
  const ScratchDir dir;
  const Outcome outcome =
      run_miles(with(with(small_run(dir / "a"), kGpuPeak), {"--num-rollout", "200"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.log;
  std::vector<int64_t> device, resident;
  for (const auto& line : json_lines(dir / "a" / "memory.jsonl")) {
    if (line["event"] != "rollout.onload_kv" || line["rollout_id"] < 20) continue;
    device.push_back(line["device_total"]);
    resident.push_back(line["resident_set"]);
  }
  ASSERT_EQ(device.size(), 179);
  EXPECT_EQ(device.front(), device.back());
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // those keep what is freed
  EXPECT_LT(resident.back(), resident.front() + (1 << 20));
#endif
}

TEST(Train, ConfigTomlRepeatsTheRunAndItself) {
  const std::vector<std::string> switches = {"--disable-grpo-std-normalization",
                                             "--no-true-on-policy", "--rollout-ignore-eos"};
  for (const auto& more : {std::vector<std::string>{}, switches}) {
    const ScratchDir dir;
    ASSERT_EQ(run_miles(with(with(small_run(dir / "a"), kGpuPeak), more)).exit_code, 0);
    const auto expected = numbers_of(dir / "a");
    const std::string config = read_file(dir / "a" / "config.toml");
    for (const std::string& flag : switches)
      EXPECT_NE(config.find(flag.substr(2) + (more.empty() ? " = false" : " = true")),
                std::string::npos)
          << flag;
    for (int generation = 0; generation < 2; ++generation) {
      fs::copy_file(dir / "a" / "config.toml", dir / "config.toml",
                    fs::copy_options::overwrite_existing);
      fs::remove_all(dir / "a");
      const Outcome again = run_miles({"train", "--config", (dir / "config.toml").string()});
      ASSERT_EQ(again.exit_code, 0) << again.log;
      EXPECT_EQ(numbers_of(dir / "a"), expected);
      EXPECT_EQ(read_file(dir / "a" / "config.toml"), config);
    }
  }
}

struct Refusal {
  std::vector<std::string> flags;
  int exit_code;
  std::string says;
};

TEST(Train, RefusesWhatCannotWorkBeforeItStarts) {
  const std::vector<Refusal> refusals = {
      {{"--colocate-memory-peak-device", "gpu"}, 2, "--colocate"},
      {{"--colocate", "--no-offload-train", "--colocate-memory-peak-device", "gpu"},
       2,
       "--offload-train"},
      {{"--colocate", "--colocate-memory-peak-device", "gpu", "--use-critic"}, 2, "critic"},
      {{"--lora-rank", "8"}, 2, "full-parameter training only"},
      {{"--n-samples-per-prompt", "1"}, 2, "n-samples-per-prompt"},
      {{"--global-batch-size", "3"}, 2, "global"},
      {{"--rollout-batch-size", "4", "--batch-size", "8"}, 2, "two names of one flag"},
      {{"--max-tokens-per-gpu", "5"}, 2, "--max-tokens-per-gpu"},
      {{"--rollout-temperature", "0"}, 2, "--rollout-temperature"},
      {{"--eval-interval", "1"}, 2, "--eval-prompt-data"},
      {{"--save-interval", "1"}, 2, "--save"},
      {{"--max-total-tokens", "13"}, 2, "14 tokens"},
      {{"--max-total-tokens", "3000000000"}, 2, "lower --max-total-tokens"},
      {{"--rollout-top-k", "5000000000"}, 2, "--rollout-top-k"},
      {{"--rollout-stop-token-ids", "5000000000"}, 2, "--rollout-stop-token-ids"},
      {{"--rollout-top-p", "0"}, 2, "--rollout-top-p is 0"},
      {{"--eval-top-k", "0", "--eval-interval", "1", "--eval-prompt-data", "x",
        "synthetic:addition?max=9&count=4"},
       2,
       "--eval-top-k is 0"},
      {{"--loss-type", "sft_loss", "--use-kl-loss"}, 2, "--use-kl-loss"},
      {{"--log-probs-chunk-size", "0"}, 2, "--log-probs-chunk-size 0"},
      {{"--loss-type", "sft_loss", "--kl-loss-coef", "0.1"}, 2, "--kl-loss-coef"},
      {{"--prompt-data", "/nowhere.jsonl"}, 3, "/nowhere.jsonl"},
      {{"--load", "/nowhere"}, 3, "--load"},
      {{"--model", "qwen3-0.7b"}, 2, "qwen3-0.6b"},
      {{"--no-such-flag"}, 2, "no-such-flag"},
      {{"--recompute-num-layers", "4"}, 2, "the model has 3 blocks"},
      {{"--recompute-num-layers", "-1"}, 2, "--recompute-num-layers"},
      {{"--rollout-max-prompt-len", "1"}, 3, "--rollout-max-prompt-len"},
      {{"--eval-interval", "1", "--eval-prompt-data", "x", "synthetic:addition?max=9&count=4", "x",
        "synthetic:addition?max=8&count=4"},
       2,
       "the name x is given twice"},
      {{"--eval-interval", "1", "--eval-prompt-data", "x-truncated_ratio",
        "synthetic:addition?max=9&count=4", "x", "synthetic:addition?max=8&count=4"},
       2,
       "the names x-truncated_ratio and x both have a metric eval/x-truncated_ratio"},
  };
  for (const Refusal& refusal : refusals) {
    const ScratchDir dir;
    auto run = small_run(dir / "a");
    for (size_t i = 0; i < refusal.flags.size(); ++i) {
      const auto given = std::find(run.begin(), run.end(), refusal.flags[i]);
      if (given != run.end() && i + 1 < refusal.flags.size()) run.erase(given, given + 2);
    }
    const Outcome outcome = run_miles(with(run, refusal.flags));
    EXPECT_EQ(outcome.exit_code, refusal.exit_code) << refusal.flags[0] << '\n' << outcome.log;
    EXPECT_NE(outcome.log.find(refusal.says), std::string::npos) << refusal.flags[0] << '\n'
                                                                 << outcome.log;
    EXPECT_FALSE(fs::exists(dir / "a")) << refusal.flags[0];
  }
}

TEST(Train, APresetWithoutWeightsSaysSo) {
  const Outcome outcome = run_miles({"generate", "--model", "qwen3-0.6b", "--prompt", "x"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.log.find("--init-random"), std::string::npos);
}

TEST(Train, MasksSamplesWhoseRewardFails) {
  const ScratchDir dir;
  // Every third answer is no reward.
  std::ofstream(dir / "rm.sh")
      << "n=0\nwhile read -r line; do n=$((n+1)); id=${line#*\\\"id\\\":}; id=${id%%,*}\n"
         "if [ $((n % 3)) = 0 ]; then echo \"{\\\"id\\\":$id,\\\"reward\\\":null}\"; "
         "else echo \"{\\\"id\\\":$id,\\\"reward\\\":$((n % 2))}\"; fi; done\n";
  const Outcome outcome = run_miles(
      with(small_run(dir / "a"), {"--custom-rm-command", "sh " + (dir / "rm.sh").string()}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.log;
  for (const auto& line : json_lines(dir / "a" / "metrics.jsonl")) {
    EXPECT_GT(line["rollout/reward_error"].get<double>(), 0);
    EXPECT_FALSE(line["train/loss"].is_null());
  }
}

TEST(Train, SaysOnceThatEqualRewardsTeachNothing) {
  const ScratchDir dir;
  const std::string words = "all advantages are 0";
  const Outcome varied = run_miles(small_run(dir / "a"));
  EXPECT_EQ(varied.log.find(words), std::string::npos) << varied.log;
  const Outcome equal = run_miles(with(small_run(dir / "b"), {"--rm-regex", "no such text"}));
  ASSERT_EQ(equal.exit_code, 0) << equal.log;
  const size_t said = equal.log.find(words);
  ASSERT_NE(said, std::string::npos) << equal.log;
  EXPECT_EQ(equal.log.find(words, said + 1), std::string::npos) << equal.log;
}

TEST(Train, SupervisedLearningStartsNoRewardCommandUnlessItEvaluates) {
  const ScratchDir dir;
  const fs::path started = dir / "started";
  std::ofstream(dir / "rm.sh") << "touch " << started.string()
                               << "\nwhile read -r line; do id=${line#*\\\"id\\\":}; id=${id%%,*}\n"
                                  "echo \"{\\\"id\\\":$id,\\\"reward\\\":0.5}\"; done\n";
  const auto run = with(small_run(dir / "a"), {"--loss-type", "sft_loss", "--custom-rm-command",
                                               "sh " + (dir / "rm.sh").string()});
  const Outcome alone = run_miles(run);
  ASSERT_EQ(alone.exit_code, 0) << alone.log;
  EXPECT_FALSE(fs::exists(started));
  const Outcome evaluated = run_miles(with(run, kEvaluated));
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.log;
  EXPECT_TRUE(fs::exists(started));
  EXPECT_EQ(json_lines(dir / "a" / "metrics.jsonl").back()["eval/sums"], 0.5);
}

TEST(Train, SupervisedLearningHoldsNoEngineUnlessItEvaluates) {
  const ScratchDir dir;
  const auto job = [&](const std::string& name, const std::vector<std::string>& flags) {
    const Outcome outcome =
        run_miles(with(with(small_run(dir / name), {"--loss-type", "sft_loss"}), flags));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
    EXPECT_TRUE(std::regex_search(
        outcome.log,
        std::regex("device peak (.*) of planned \\1, host peak (.*) of planned \\2\n")))
        << outcome.log;
    bool engine = false;
    for (const auto& line : json_lines(dir / name / "memory.jsonl"))
      for (const auto& [tag, bytes] : line["device_at_peak"].items())
        engine = engine || tag.starts_with("rollout.");
    return engine;
  };
  EXPECT_FALSE(job("resident", {}));
  EXPECT_FALSE(job("loaded", kCpuPeak));
  EXPECT_FALSE(job("streamed", kGpuPeak));
  EXPECT_TRUE(job("evaluated", with(with(kGpuPeak, kEvaluated), {"--skip-eval-before-train"})));
  const auto expected = numbers_of(dir / "resident");
  for (const char* const name : {"loaded", "streamed", "evaluated"})
    EXPECT_EQ(numbers_of(dir / name), expected) << name;
  const auto rows = json_lines(dir / "resident" / "metrics.jsonl");
  EXPECT_LT(rows.back()["train/loss"].get<double>(), rows.front()["train/loss"].get<double>());
}

TEST(Train, ShowsSpecialTokensInTheTextUnlessToldNotTo) {
  const ScratchDir dir;
  // The end of text is drawn now and then, and does not end a response.
  const auto run = with(small_run(dir / "a"), {"--rollout-ignore-eos", "--num-rollout", "60",
                                               "--rm-regex", "<eos>|<bos>"});
  ASSERT_EQ(run_miles(run).exit_code, 0);
  const auto shown = [&] {
    int64_t count = 0;
    for (const auto& line : json_lines(dir / "a" / "samples.jsonl"))
      count += line["response"].get<std::string>().find("os>") != std::string::npos ? 1 : 0;
    return count;
  };
  EXPECT_GT(shown(), 0);
  ASSERT_EQ(run_miles(with(run, {"--rollout-skip-special-tokens"})).exit_code, 0);
  EXPECT_EQ(shown(), 0);
}

TEST(Train, AFreshRunMovesTheRecordsOfTheOneBeforeAside) {
  const ScratchDir dir;
  for (int n = 0; n < 3; ++n) {
    const Outcome outcome =
        run_miles(with(small_run(dir / "run"), {"--num-rollout", std::to_string(n + 1)}));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.log;
    const bool said = outcome.log.find(fmt::format("previous-{}", n)) != std::string::npos;
    EXPECT_EQ(said, n > 0) << outcome.log;
  }
  for (const auto& [name, rollouts] : {std::pair{"previous-1", 1}, {"previous-2", 2}, {".", 3}}) {
    EXPECT_EQ(json_lines(dir / "run" / name / "metrics.jsonl").size(), rollouts) << name;
    EXPECT_EQ(json_lines(dir / "run" / name / "samples.jsonl").size(), 8 * rollouts) << name;
    for (const char* file : {"memory.jsonl", "config.toml", "run.json", "report.html"})
      EXPECT_TRUE(fs::exists(dir / "run" / name / file)) << name << '/' << file;
  }
}

TEST(Inspect, KnowsModelsRunsAndCheckpoints) {
  const ScratchDir dir;
  ASSERT_EQ(run_miles(with(small_run(dir / "run"), {"--save", (dir / "save").string()})).exit_code,
            0);
  for (const auto& [path, says] :
       {std::pair{dir / "run", "a run"},
        {dir / "save", "a checkpoint"},
        {dir / "save" / "iter_0000005" / "hf", "a Hugging Face model"}}) {
    const Outcome outcome = run_miles({"inspect", path.string()});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
    EXPECT_NE(outcome.out.find(says), std::string::npos) << outcome.out;
  }
  EXPECT_EQ(run_miles({"inspect", dir.path().string()}).exit_code, 3);
}

TEST(Inspect, KeepsNamesAndValuesApart) {
  const ScratchDir dir;
  ASSERT_EQ(run_miles(with(small_run(dir / "run"), kEvaluated)).exit_code, 0);
  const Outcome outcome = run_miles({"inspect", (dir / "run").string()});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.log;
  std::istringstream lines(outcome.out);
  std::string line;
  std::getline(lines, line);  // the title
  std::set<size_t> columns;
  std::map<std::string, std::string> values;
  while (std::getline(lines, line)) {
    const size_t end = line.find("  ", 2), begin = line.find_first_not_of(' ', end);
    ASSERT_NE(begin, std::string::npos) << line;
    columns.insert(begin);
    values[line.substr(2, end - 2)] = line.substr(begin);
  }
  EXPECT_EQ(columns.size(), 1) << outcome.out;
  EXPECT_EQ(values["rollouts"], "6");
  EXPECT_EQ(values["train/train_rollout_logprob_abs_diff"], "0.0");
}

}  // namespace
}  // namespace miles::test
