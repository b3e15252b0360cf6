#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/standalone_engine.h"
#include "observe/progress.h"
#include "text/utf8.h"

namespace miles {
namespace {

struct GenerateFlags {
  ModelOptions model;
  DeviceConfig device;
  EngineConfig engine;
  SamplingParams sampling;
  std::vector<std::string> prompts;
  std::string prompt_file;
  int64_t n = 1;  // samples a prompt
  uint64_t sampling_seed = 42;
  bool json = false;
};

void add_flags(CommandLine& line, GenerateFlags& flags) {
  CLI::App& app = line.app();
  add_model_flags(line, flags.model);
  const std::string group = "Generation";
  SamplingParams& sampling = flags.sampling;
  line.texts("--prompt", flags.prompts, "text; may be given again; \"\" begins with BOS alone")
      ->group(group);
  app.add_option("--prompt-file", flags.prompt_file, "one prompt: the file's content")
      ->type_name("FILE")
      ->group(group);
  line.number<int64_t>("--n", flags.n, {.least = 1, .most = 1'000'000}, "samples a prompt")
      ->group(group);
  line.number<int64_t>("--max-new-tokens", sampling.max_new_tokens, {.least = 1},
                       "tokens of a response")
      ->group(group);
  line.number<float>("--temperature", sampling.temperature, {},
                     "logits are divided by it; 0: the most likely token each time")
      ->group(group);
  line.number<int32_t>("--top-k", sampling.top_k, {.least = -1, .most = INT32_MAX},
                       "draw from this many tokens; -1: from all")
      ->group(group);
  line.number<float>("--top-p", sampling.top_p, {.most = 1, .above_least = true},
                     "draw from the fewest tokens that have this probability")
      ->group(group);
  line.number<float>("--min-p", sampling.min_p, {.most = 1},
                     "draw no token with less than this share of the likeliest one's probability")
      ->group(group);
  line.texts("--stop", sampling.stop, "strings that end a response")->group(group);
  line.numbers("--stop-token-ids", sampling.stop_token_ids, {.most = INT32_MAX},
               "token ids that end a response")
      ->group(group);
  app.add_flag("--ignore-eos", sampling.ignore_eos, "the model's end does not end a response")
      ->group(group);
  line.number<uint64_t>("--sampling-seed", flags.sampling_seed, {.most = UINT64_MAX},
                        "of the draws")
      ->group(group);
  app.add_flag("--json", flags.json, "one JSON line a response, with ids and log-probs")
      ->group(group);
  add_engine_flags(line, flags.engine);
  add_device_flags(line, flags.device);
}

nlohmann::ordered_json to_json(const std::string& prompt, const GenerateResult& result) {
  return {{"prompt", prompt},
          {"text", result.text},
          {"output_ids", result.output_ids},
          {"log_probs", result.log_probs},
          {"finish_reason", name_of(result.finish.reason)}};
}

std::string read_prompt(const std::string& path) {
  std::string text = read_file(path);
  if (!is_valid_utf8(text))
    fail(ErrorCode::data, "--prompt-file {}: not UTF-8, as a prompt must be", path);
  return text;
}

/// The line above response `i`, where there are several.
std::string heading(size_t i, const GenerateFlags& flags) {
  const auto n = static_cast<size_t>(flags.n);
  std::string words;
  if (flags.prompts.size() > 1) words += fmt::format(" prompt {}", i / n + 1);
  if (n > 1) words += fmt::format("{} sample {}", words.empty() ? "" : ",", i % n + 1);
  return words.empty() ? "" : "==" + words + '\n';
}

}  // namespace

int generate_command(int argc, const char* const* argv) {
  CommandLine line("generate", "Responses to prompts.");
  GenerateFlags flags;
  add_flags(line, flags);
  if (!line.parse(argc, argv)) return 0;
  if (!flags.prompt_file.empty()) flags.prompts.push_back(read_prompt(flags.prompt_file));
  if (flags.prompts.empty())
    fail(ErrorCode::flags, "no prompt: pass --prompt TEXT or --prompt-file FILE");
  check_sampling_params(flags.sampling);

  ModelSource model = ModelSource::resolve(flags.model);
  const Tokenizer tokenizer = model.load_tokenizer();
  std::vector<GenerateRequest> requests;
  int64_t longest = 0;
  for (size_t p = 0; p < flags.prompts.size(); ++p) {
    const std::vector<int32_t> ids = tokenizer.encode_prompt(flags.prompts[p]);
    const auto length = static_cast<int64_t>(ids.size());
    const int64_t context = model.config().max_position_embeddings;
    if (length >= context)
      fail(ErrorCode::data,
           "prompt {} has {} tokens, but the model's context is {} and one must be left for the "
           "response",
           p + 1, length, context);
    longest = std::max(longest, length);
    for (int64_t i = 0; i < flags.n; ++i)
      requests.push_back({.id = static_cast<int64_t>(requests.size()),
                          .prompt = ids,
                          .params = flags.sampling,
                          .group = static_cast<int64_t>(p)});
  }
  TrainConfig config;  // as far as an engine needs one
  config.device = flags.device;
  config.engine = flags.engine;
  config.rollout.max_prompt_len = longest;
  config.rollout.max_response_len = flags.sampling.max_new_tokens;
  config.rollout.seed = flags.sampling_seed;
  StandaloneEngine standalone(std::move(model), {.config = config,
                                                 .requests = std::ssize(requests),
                                                 .response_len_flag = "--max-new-tokens"});
  const Stopwatch watch;
  std::vector<GenerateResult> results;
  {
    Progress progress("generate", 0, "tokens");  // of prompts and responses: who knows their end
    results = standalone.engine().generate(
        requests, {.weight_version = StandaloneEngine::kWeightVersion,
                   .on_finish = {},
                   .should_abort = {},
                   .on_step = [&](const StepStats& step) {
                     progress.advance(step.prefill_tokens + step.decode_tokens);
                   }});
  }
  const double seconds = watch.seconds();
  int64_t tokens = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    const std::string& prompt = flags.prompts[i / static_cast<size_t>(flags.n)];
    tokens += static_cast<int64_t>(results[i].output_ids.size());
    if (flags.json)
      std::cout << to_json(prompt, results[i])
                       .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
                << '\n';
    else
      std::cout << heading(i, flags) << results[i].text << '\n';
  }
  log::info("{}, {}, {:.0f} tokens/s", format_count(std::ssize(results), "response"),
            format_count(tokens, "token"), tokens / seconds);
  return 0;
}

}  // namespace miles
