#include "cli/flags.h"

#include <fmt/ranges.h>

#include "base/log.h"

namespace miles {

void add_model_flags(CommandLine& line, ModelOptions& options) {
  CLI::App& app = line.app();
  const std::string group = "Model";
  app.add_option(
         "--hf-checkpoint", options.hf_checkpoint,
         "local Hugging Face directory, or a checkpoint of miles train: weights, tokenizer, "
         "and unless --model is given the architecture")
      ->type_name("DIR")
      ->group(group);
  app.add_option("--model", options.model,
                 fmt::format("architecture: a preset ({}), a directory with a config.json, or a "
                             "checkpoint of miles train",
                             fmt::join(preset_names(), ", ")))
      ->type_name("NAME|DIR")
      ->group(group);
  app.add_flag("--init-random", options.init_random, "draw the weights from --seed")->group(group);
  app.add_option("--tokenizer", options.tokenizer,
                 "directory with a tokenizer.json (default: the model's)")
      ->type_name("DIR")
      ->group(group);
  line.choice<DTypeChoice>("--dtype", options.dtype,
                           {{"auto", DTypeChoice::automatic},
                            {"float32", DTypeChoice::float32},
                            {"bfloat16", DTypeChoice::bfloat16}},
                           "of weights and activations; auto: as config.json says")
      ->group(group);
  line.number<uint64_t>("--seed", options.seed, {.most = UINT64_MAX}, "of random weights")
      ->group(group);
}

void add_device_flags(CommandLine& line, DeviceConfig& config) {
  const std::string group = "Device and memory";
  line.choice<DeviceChoice>("--device", config.device,
                            {{"auto", DeviceChoice::automatic},
                             {"cpu", DeviceChoice::cpu},
                             {"cuda", DeviceChoice::cuda}},
                            "where to compute; auto: a GPU where there is one")
      ->group(group);
  line.bytes("--gpu-memory-budget", config.gpu_memory_budget,
             "device memory that may be used, e.g. 24GiB (default: all that is free)")
      ->group(group);
  line.bytes("--host-memory-budget", config.host_memory_budget,
             "host memory that may be used, e.g. 64GiB (default: all that the host has)")
      ->group(group);
}

void add_engine_flags(CommandLine& line, EngineConfig& config) {
  const std::string group = "Rollout engine";
  line.number<int64_t>("--max-total-tokens", config.max_total_tokens, {.least = 1},
                       "capacity of the KV cache, tokens (default: --max-running-requests of the "
                       "longest samples)")
      ->group(group);
  line.number<int64_t>("--max-running-requests", config.max_running_requests, {.least = 1},
                       "sequences in a batch (default: as many as come at once, at most 64, on a "
                       "GPU 256)")
      ->group(group);
  line.number<int64_t>("--chunked-prefill-size", config.chunked_prefill_size, {.least = 1},
                       "prompt tokens a step (default: 512; on a GPU 4096)")
      ->group(group);
  line.number<int64_t>("--page-size", config.page_size, {.least = 1}, "tokens of a KV cache page")
      ->group(group);
  line.app()
      .add_flag("!--no-true-on-policy", config.true_on_policy,
                "rollout log-probs need not be training's bit for bit: a GPU may split products "
                "along k as it likes")
      ->group(group);
  line.app()
      .add_flag("!--disable-overlap-schedule", config.overlap_schedule,
                "a GPU waits between two steps while the host takes in what the first has drawn")
      ->group(group);
}

void add_row_flags(CommandLine& line, DataOptions& options) {
  CLI::App& app = line.app();
  app.add_option("--input-key", options.input_key, "key of the prompt in a row")
      ->type_name("KEY")
      ->group(kDataGroup)
      ->capture_default_str();
  app.add_option("--label-key", options.label_key,
                 "key of the expected answer in a row; \"\": there is none")
      ->type_name("KEY")
      ->group(kDataGroup)
      ->capture_default_str();
  app.add_option("--metadata-key", options.metadata_key, "key of a row's metadata, an object")
      ->type_name("KEY")
      ->group(kDataGroup)
      ->capture_default_str();
}

void add_reward_flags(CommandLine& line, RewardConfig& config) {
  CLI::App& app = line.app();
  const std::string group = "Reward";
  line.choice<RmType>("--rm-type", config.rule.type,
                      {{"exact", RmType::exact}, {"math", RmType::math}, {"regex", RmType::regex}},
                      "rule that scores a response 1 or 0 against its label")
      ->group(group);
  app.add_option("--rm-regex", config.rule.pattern,
                 "pattern of --rm-type regex (PCRE2); its first group must equal the label, if "
                 "there are both")
      ->type_name("PATTERN")
      ->group(group);
  app.add_option("--custom-rm-command", config.custom_rm_command,
                 "program that scores, instead of a rule: one JSON line {id, prompt, response, "
                 "label, metadata} in, one {id, reward} out")
      ->check([](const std::string& command) {
        if (command.empty()) log::warn("--custom-rm-command is empty: --rm-type says what scores");
        return "";
      })
      ->type_name("CMD")
      ->group(group);
  line.number<int64_t>("--rm-workers", config.rm_workers, {.least = 1, .most = 4096},
                       "processes of --custom-rm-command")
      ->group(group);
  line.number<double>("--rm-timeout", config.rm_timeout, {.most = 1e6, .above_least = true},
                      "seconds that the reward of one sample may take")
      ->group(group);
}

void add_eval_set_flags(CommandLine& line, EvalConfig& config) {
  const std::string group = "Evaluation";
  line.texts("--eval-prompt-data", config.prompt_data,
             "data to evaluate on, by name: NAME PATH [NAME PATH ...]; a path as in --prompt-data")
      ->type_name("NAME PATH")
      ->group(group);
  line.number<int64_t>("--n-samples-per-eval-prompt", config.n_samples_per_prompt, {.least = 1},
                       "samples a prompt")
      ->group(group);
  line.number<double>("--eval-temperature", config.temperature, {},
                      "0: the most likely token each time (default: --rollout-temperature, 1)")
      ->group(group);
  line.number<double>("--eval-top-p", config.top_p, {.most = 1},
                      "draw from the fewest tokens that have this probability (default: "
                      "--rollout-top-p, 1)")
      ->group(group);
  line.number<int32_t>("--eval-top-k", config.top_k, {.least = -1, .most = INT32_MAX},
                       "draw from this many tokens; -1: from all (default: --rollout-top-k, -1)")
      ->group(group);
  line.number<int64_t>("--eval-max-response-len", config.max_response_len, {.least = 1},
                       "tokens of a response (default: --rollout-max-response-len, 256)")
      ->group(group);
}

void add_any_rollout_flags(CommandLine& line, RolloutConfig& config) {
  const std::string group = "Rollout";
  line.number<int64_t>("--rollout-max-prompt-len", config.max_prompt_len, {.least = 1},
                       "tokens of a prompt; longer ones are skipped")
      ->group(group);
  line.number<uint64_t>("--rollout-seed", config.seed, {.most = UINT64_MAX},
                        "of the draws, and in training of the prompts' order")
      ->group(group);
  line.app()
      .add_flag("--rollout-skip-special-tokens", config.skip_special_tokens,
                "special tokens within a response do not appear in its text")
      ->group(group);
}

}  // namespace miles
