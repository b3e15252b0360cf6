#include <iostream>

#include "base/interrupt.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/standalone_engine.h"
#include "observe/metrics.h"
#include "observe/text_chart.h"
#include "rl/rollout_executor.h"
#include "rl/sampling.h"
#include "rl/train_setup.h"

namespace miles {

int eval_command(int argc, const char* const* argv) {
  watch_for_interrupts();  // before anything starts a thread
  CommandLine line("eval", "A model's reward on data sets.");
  TrainConfig config;
  add_model_flags(line, config.model);
  add_eval_set_flags(line, config.eval);
  add_row_flags(line, config.data);
  add_reward_flags(line, config.reward);
  add_engine_flags(line, config.engine);
  add_device_flags(line, config.device);
  line.app().get_option("--eval-prompt-data")->required();
  RolloutConfig& rollout = config.rollout;
  add_any_rollout_flags(line, rollout);
  if (!line.parse(argc, argv)) return 0;
  check_sampling_params(eval_sampling(config), "--eval-");
  if (config.eval.max_response_len) rollout.max_response_len = *config.eval.max_response_len;

  ModelSource model = ModelSource::resolve(config.model);
  const Tokenizer tokenizer = model.load_tokenizer();
  const int64_t context = max_sample_length(config, model.config());
  std::vector<EvalSet> sets = load_eval_sets(config);
  int64_t requests = 0;
  for (EvalSet& set : sets) {
    keep_fitting_prompts(set.source, tokenizer, std::min(rollout.max_prompt_len, context - 1));
    keep_labelled_prompts(set.source, set.name, config.reward, LabelUse::scored);
    requests += set.source.size() * config.eval.n_samples_per_prompt;
  }
  Scorer scorer(config.reward);
  StandaloneEngine standalone(
      std::move(model),
      {.config = config, .requests = requests, .response_len_flag = "--eval-max-response-len"});
  RolloutExecutor executor(config, standalone.config(), tokenizer, standalone.engine(), &scorer);
  std::vector<std::vector<std::string>> rows;
  for (const EvalSet& set : sets) {
    const auto samples = executor.evaluate(set.source, 0, StandaloneEngine::kWeightVersion);
    Mean reward, length, truncated;
    for (const Sample& sample : samples) {
      if (sample.reward) reward.add(*sample.reward);
      length.add(static_cast<double>(sample.response_length));
      truncated.add(sample.status == SampleStatus::truncated ? 1 : 0);
    }
    rows.push_back({set.name, fmt::format("{:.4f}", reward.mean()), std::to_string(samples.size()),
                    std::to_string(static_cast<int64_t>(samples.size()) - reward.count()),
                    fmt::format("{:.1f}", length.mean()), fmt::format("{:.3f}", truncated.mean())});
  }
  std::cout << text_table({"data", "reward", "samples", "reward errors", "tokens", "truncated"},
                          rows);
  return 0;
}

}  // namespace miles
