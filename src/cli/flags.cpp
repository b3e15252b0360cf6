#include "cli/flags.h"

#include <fmt/ranges.h>

namespace miles {

void add_model_flags(CommandLine& line, ModelOptions& options) {
  CLI::App& app = line.app();
  const std::string group = "Model";
  app.add_option("--hf-checkpoint", options.hf_checkpoint,
                 "Hugging Face directory: weights, and unless --model is given the architecture")
      ->group(group);
  app.add_option("--model", options.model,
                 fmt::format("architecture: a preset ({}) or a directory with a config.json",
                             fmt::join(preset_names(), ", ")))
      ->group(group);
  app.add_flag("--init-random", options.init_random, "draw the weights from --seed")->group(group);
  app.add_option("--tokenizer", options.tokenizer,
                 "directory with a tokenizer.json, where the model's has none")
      ->group(group);
  line.choice<DTypeChoice>("--dtype", options.dtype,
                           {{"auto", DTypeChoice::automatic},
                            {"float32", DTypeChoice::float32},
                            {"bfloat16", DTypeChoice::bfloat16}},
                           "of weights and activations; auto: as config.json says")
      ->group(group);
  app.add_option("--seed", options.seed, "of random weights")->group(group)->capture_default_str();
}

void add_device_flags(CommandLine& line, DeviceConfig& config) {
  const std::string group = "Device and memory";
  line.choice<DeviceChoice>("--device", config.device,
                            {{"auto", DeviceChoice::automatic},
                             {"cpu", DeviceChoice::cpu},
                             {"cuda", DeviceChoice::cuda}},
                            "where to compute")
      ->group(group);
  line.bytes("--gpu-memory-budget", config.gpu_memory_budget,
             "device memory that may be used, e.g. 24GiB (default: all that is free)")
      ->group(group);
  line.bytes("--host-memory-budget", config.host_memory_budget,
             "host memory that may be used, e.g. 64GiB (default: all)")
      ->group(group);
}

void add_engine_flags(CommandLine& line, EngineConfig& config) {
  CLI::App& app = line.app();
  const std::string group = "Rollout engine";
  app.add_option(
         "--max-total-tokens", config.max_total_tokens,
         "capacity of the KV cache in tokens (default: --max-running-requests full samples)")
      ->check(CLI::PositiveNumber)
      ->group(group);
  app.add_option(
         "--max-running-requests", config.max_running_requests,
         "sequences in a batch (default: as many as come at once, at most 64, on a GPU 256)")
      ->check(CLI::PositiveNumber)
      ->group(group);
  app.add_option("--chunked-prefill-size", config.chunked_prefill_size,
                 "prompt tokens a step (default: 512; on a GPU 4096)")
      ->check(CLI::PositiveNumber)
      ->group(group);
  app.add_option("--page-size", config.page_size, "tokens of a KV cache page")
      ->check(CLI::PositiveNumber)
      ->group(group)
      ->capture_default_str();
  app.add_flag(
         "!--no-true-on-policy", config.true_on_policy,
         "rollout log-probs need not be training's bit for bit: a GPU may split products along "
         "k as it likes")
      ->group(group);
  app.add_flag("!--disable-overlap-schedule", config.overlap_schedule,
               "a GPU waits between two steps while the host takes in what the first has drawn")
      ->group(group);
}

void add_data_flags(CommandLine& line, DataOptions& options) {
  CLI::App& app = line.app();
  const std::string group = "Data";
  app.add_option("--input-key", options.input_key, "key of the prompt in a row")
      ->group(group)
      ->capture_default_str();
  app.add_option("--label-key", options.label_key, "key of the expected answer")
      ->group(group)
      ->capture_default_str();
  app.add_option("--metadata-key", options.metadata_key, "key of a row's metadata")
      ->group(group)
      ->capture_default_str();
}

void add_reward_flags(CommandLine& line, RewardConfig& config) {
  CLI::App& app = line.app();
  const std::string group = "Reward";
  line.choice<RmType>("--rm-type", config.rule.type,
                      {{"exact", RmType::exact}, {"math", RmType::math}, {"regex", RmType::regex}},
                      "rule that scores a response against its label")
      ->group(group);
  app.add_option("--rm-regex", config.rule.pattern, "pattern of --rm-type regex (PCRE2)")
      ->group(group);
  app.add_option(
         "--custom-rm-command", config.custom_rm_command,
         "program that scores: one JSON line {id, prompt, response, label, metadata} in, one "
         "{id, reward} out")
      ->group(group);
  app.add_option("--rm-workers", config.rm_workers, "processes of --custom-rm-command")
      ->check(CLI::PositiveNumber)
      ->group(group)
      ->capture_default_str();
  app.add_option("--rm-timeout", config.rm_timeout, "seconds that a reward may take")
      ->check(CLI::PositiveNumber)
      ->group(group)
      ->capture_default_str();
}

void add_eval_set_flags(CommandLine& line, EvalConfig& config) {
  CLI::App& app = line.app();
  const std::string group = "Evaluation";
  app.add_option("--eval-prompt-data", config.prompt_data, "NAME PATH [NAME PATH ...]")
      ->type_name("NAME PATH")
      ->take_all()
      ->group(group);
  app.add_option("--n-samples-per-eval-prompt", config.n_samples_per_prompt, "samples a prompt")
      ->check(CLI::PositiveNumber)
      ->group(group)
      ->capture_default_str();
  app.add_option("--eval-temperature", config.temperature, "default: the rollout's")
      ->check(CLI::NonNegativeNumber)
      ->group(group);
  app.add_option("--eval-top-p", config.top_p, "default: the rollout's")
      ->check(CLI::Range(0.0, 1.0))
      ->group(group);
  app.add_option("--eval-top-k", config.top_k, "default: the rollout's; -1: all")
      ->check(CLI::Range(-1, INT32_MAX))
      ->group(group);
  app.add_option("--eval-max-response-len", config.max_response_len, "default: the rollout's")
      ->check(CLI::PositiveNumber)
      ->group(group);
}

void add_skip_special_tokens_flag(CLI::App& app, RolloutConfig& config) {
  app.add_flag("--rollout-skip-special-tokens", config.skip_special_tokens,
               "special tokens within a response do not appear in its text")
      ->group("Rollout");
}

}  // namespace miles
