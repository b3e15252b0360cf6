// Speed of the three parts of a colocated step at a real model's shape, random weights: rollout,
// training and handoff, each beside what the machine could do at best.
//   colocate_bench --model qwen3-0.6b rollout --requests 256 --prompt-len 1024 --new-tokens 1024
//   colocate_bench --model qwen3-0.6b rollout --min-len 100 --max-len 1024       ragged, by --seed
//   colocate_bench --model qwen3-1.7b train --seq-len 4096 --tokens 32768
//   colocate_bench --model qwen3-1.7b train --recompute-num-layers 0     keeps all activations
//   colocate_bench --model qwen3-8b handoff --peak gpu --turns 3
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "base/units.h"
#include "bench/bench_main.h"
#include "bench/bench_model.h"
#include "colocate/handoff.h"
#include "model/weights_io.h"

namespace miles::bench {
namespace {

struct Options : Shape {
  std::string device = "auto";
  uint64_t seed = 1;
  int64_t repeats = 2;
  // rollout
  int64_t requests = 256;
  int64_t group = 1;  // requests that share a prompt
  int64_t prompt_len = 1024, new_tokens = 1024;
  int64_t min_len = 0, max_len = 0;  // with both: prompt and response uniform in between
  int64_t chunk = 8192;
  bool true_on_policy = true, overlap_schedule = true;
  // train
  int64_t tokens = 32768, seq_len = 4096, max_tokens_per_gpu = 16384;
  int64_t log_probs_chunk_size = 0;
  int64_t recompute_num_layers = INT64_MAX;
  std::string placement = "resident";
  // handoff
  std::string peak = "gpu";
  int64_t turns = 3;
};

/// The device with its ledger, and the copy rates that it reaches.
class Machine {
 public:
  explicit Machine(const Options& options)
      : device_(options.device == "cpu"                                ? make_cpu_device()
                : options.device == "auto" && cuda_device_count() == 0 ? make_cpu_device()
                                                                       : make_cuda_device()) {}
  Memory memory() { return {*device_, ledger_}; }
  Device& device() { return *device_; }
  Ledger& ledger() { return ledger_; }

  /// Bytes a second of copies between two places, one direction: read or written, not both.
  double copy_rate(Place to, Place from) {
    const int64_t bytes = device_->kind() == DeviceKind::cuda ? int64_t{1} << 30 : int64_t{1} << 26;
    Region a(memory(), from, "bench", bytes), b(memory(), to, "bench", bytes);
    a.commit();
    b.commit();
    const auto stream = device_->make_stream(StreamUse::compute);
    double best = 0;
    for (int i = 0; i < 5; ++i) {
      const Stopwatch watch;
      for (int j = 0; j < 4; ++j) stream->copy(b.data(), a.data(), bytes);
      stream->synchronize();
      best = std::max(best, 4 * static_cast<double>(bytes) / watch.seconds());
    }
    return best;
  }

 private:
  std::unique_ptr<Device> device_;
  Ledger ledger_;
};

// --- rollout ---

struct Lengths {
  std::vector<int64_t> prompts, responses;
};

Lengths make_lengths(const Options& options) {
  Lengths lengths;
  for (int64_t i = 0; i < options.requests; ++i) {
    const auto draw = [&](uint64_t counter, int64_t fixed) {
      if (options.max_len == 0) return fixed;
      const auto span = static_cast<uint64_t>(options.max_len - options.min_len + 1);
      return options.min_len +
             static_cast<int64_t>(uniform_below(span, options.seed, RngUse::test,
                                                static_cast<uint64_t>(i), counter));
    };
    lengths.prompts.push_back(draw(0, options.prompt_len));
    lengths.responses.push_back(draw(1, options.new_tokens));
  }
  return lengths;
}

/// Bytes of weights and of keys and values that the decode steps of a whole run must read.
double floor_bytes(const ModelConfig& config, const ParamLayout& layout, const Lengths& lengths,
                   int64_t steps) {
  const int64_t embedding = config.tie_word_embeddings ? 0 : config.vocab_size * config.hidden_size;
  double bytes = static_cast<double>((layout.parameters() - embedding) * size_of(config.dtype)) *
                 static_cast<double>(steps);
  const auto token = static_cast<double>(2 * config.num_hidden_layers * config.num_key_value_heads *
                                         config.head_dim * size_of(config.dtype));
  for (size_t i = 0; i < lengths.prompts.size(); ++i) {
    const auto prompt = static_cast<double>(lengths.prompts[i]),
               drawn = static_cast<double>(lengths.responses[i]);
    bytes += token * drawn * (prompt + drawn / 2);
  }
  return bytes;
}

void rollout(const Options& options) {
  Machine machine(options);
  const ModelConfig config = make_config(options);
  const ParamLayout layout(config);
  const Lengths lengths = make_lengths(options);
  EngineOptions engine_options{.page_size = 16,
                               .max_running_requests = options.requests,
                               .chunked_prefill_size = options.chunk,
                               .seed = options.seed,
                               .true_on_policy = options.true_on_policy,
                               .overlap_schedule = options.overlap_schedule};
  int64_t total = 0, output = 0;
  for (size_t i = 0; i < lengths.prompts.size(); ++i) {
    const int64_t length = lengths.prompts[i] + lengths.responses[i];
    engine_options.max_context_len = std::max(engine_options.max_context_len, length);
    total += length + engine_options.page_size;
    output += lengths.responses[i];
  }
  engine_options.max_total_tokens = total;
  Engine engine(engine_options, config, layout, machine.memory(), nullptr);
  engine.onload_weights();
  engine.onload_kv();
  {
    Region staging(machine.memory(), Place::host, "staging",
                   layout.elements() * size_of(config.dtype));
    staging.commit();
    const Tensor flat = staging.tensor(config.dtype, {layout.elements()});
    init_random_weights(config, layout, 1, flat);
    engine.update_weights(flat, 1);
  }
  std::vector<GenerateRequest> requests;
  for (int64_t i = 0; i < options.requests; ++i)
    requests.push_back(
        {.id = i,
         .prompt = random_ids(config, lengths.prompts[static_cast<size_t>(i)], i / options.group),
         .params = {.max_new_tokens = lengths.responses[static_cast<size_t>(i)],
                    .ignore_eos = true},
         .group = i / options.group});
  fmt::print("{:<10}{:>10}{:>12}{:>12}{:>12}{:>12}{:>10}\n", "rollout", "seconds", "prefill s",
             "decode s", "out tok/s", "decode ms", "steps");
  double best = 1e300;
  int64_t steps = 0;
  for (int64_t repeat = 0; repeat < options.repeats; ++repeat) {
    double prefill = 0, decode = 0;
    int64_t decode_steps = 0;
    Stopwatch step;
    const Stopwatch watch;
    engine.generate(requests, {.weight_version = 1, .on_step = [&](const StepStats& stats) {
                                 const double seconds = step.seconds();
                                 step.reset();
                                 if (stats.prefill_tokens > 0) {
                                   prefill += seconds;
                                 } else {
                                   decode += seconds;
                                   ++decode_steps;
                                 }
                               }});
    const double seconds = watch.seconds();
    fmt::print("run {:<6}{:>10.3f}{:>12.3f}{:>12.3f}{:>12.0f}{:>12.3f}{:>10}\n", repeat, seconds,
               prefill, decode, static_cast<double>(output) / seconds,
               1e3 * decode / static_cast<double>(decode_steps), decode_steps);
    if (decode < best) best = decode, steps = decode_steps;
  }
  engine.offload_kv();
  const double rate = 2 * machine.copy_rate(Place::device, Place::device);
  const double floor = floor_bytes(config, layout, lengths, steps) / rate;
  fmt::print(
      "device copies {:.0f} GB/s (read and written); decode floor {:.3f} s: reached {:.0f}%; {} "
      "requests, {} output tokens\n",
      rate * 1e-9, floor, 100 * floor / best, options.requests, output);
}

// --- training ---

ActorPlacement placement_of(const std::string& name) {
  if (name == "resident") return ActorPlacement::resident;
  if (name == "loaded") return ActorPlacement::loaded;
  if (name == "streamed") return ActorPlacement::streamed;
  fail(ErrorCode::flags, "--placement {}: allowed are resident, loaded, streamed", name);
}

ActorOptions actor_options(const Options& options, ActorPlacement placement) {
  return {.placement = placement,
          .max_tokens_per_gpu = std::min(options.max_tokens_per_gpu, options.tokens),
          .max_tokens_per_step = options.tokens,
          .max_sequences_per_step = std::max<int64_t>(1, options.tokens / options.seq_len),
          .max_sequence_length = options.seq_len,
          .log_probs_chunk_size = options.log_probs_chunk_size,
          .recompute_num_layers = options.recompute_num_layers,
          .optimizer = {.schedule = {.lr = 1e-6, .style = LrDecayStyle::constant}}};
}

/// Operations of forward and backward without recomputing: six a parameter and token, and causal
/// attention.
double model_flops(const ModelConfig& config, const ParamLayout& layout, const Options& options) {
  const int64_t embedding = config.tie_word_embeddings ? 0 : config.vocab_size * config.hidden_size;
  const auto tokens = static_cast<double>(options.tokens);
  return 6 * static_cast<double>(layout.parameters() - embedding) * tokens +
         6 * tokens *
             static_cast<double>(options.seq_len * config.q_size() * config.num_hidden_layers);
}

void train(const Options& options) {
  Machine machine(options);
  const ModelConfig config = make_config(options);
  const ParamLayout layout(config);
  ActorModel actor(actor_options(options, placement_of(options.placement)), config, layout,
                   machine.memory());
  actor.load_weights([&](const Tensor& flat) { init_random_weights(config, layout, 1, flat); });
  actor.onload();
  const std::vector<TrainSample> samples =
      make_samples(config, std::max<int64_t>(1, options.tokens / options.seq_len), options.seq_len);
  fmt::print("{:<10}{:>10}{:>12}{:>14}\n", "train", "seconds", "tokens/s", "model TFLOP/s");
  for (int64_t repeat = 0; repeat <= options.repeats; ++repeat) {
    const Stopwatch watch;
    const StepResult result = actor.train_step(samples, {});
    const double seconds = watch.seconds(),
                 rate = model_flops(config, layout, options) / seconds * 1e-12;
    fmt::print("{:<10}{:>10.3f}{:>12.0f}{:>14.1f}\n",
               repeat == 0 ? "warm-up" : fmt::format("step {}", repeat), seconds,
               static_cast<double>(result.tokens) / seconds, rate);
  }
  fmt::print("device peak {}, host peak {}; {}; {} of {} blocks recomputed\n",
             format_bytes(machine.ledger().usage(Place::device).peak),
             format_bytes(machine.ledger().usage(Place::host).peak), options.placement,
             std::min(options.recompute_num_layers, layout.layers()), layout.layers());
}

// --- handoff ---

struct EventSum {
  double seconds = 0;
  int64_t count = 0;
  int64_t to_device = 0, to_host = 0;  // bytes copied
};

/// Exit code: 1 when rollout and training differ, or a step was skipped.
int handoff(Options options) {
  // Every sample is learned from, in one step.
  options.seq_len = options.prompt_len + options.new_tokens;
  options.tokens = options.requests * options.seq_len;
  Machine machine(options);
  const ModelConfig config = make_config(options);
  const ParamLayout layout(config);
  const bool gpu = options.peak == "gpu";
  const double in = machine.copy_rate(Place::device, Place::host),
               out = machine.copy_rate(Place::host, Place::device);
  ActorModel actor(actor_options(options, gpu ? ActorPlacement::streamed : ActorPlacement::loaded),
                   config, layout, machine.memory());
  const int64_t context = options.seq_len;
  Engine engine({.max_total_tokens = options.requests * (context + 16),
                 .page_size = 16,
                 .max_running_requests = options.requests,
                 .chunked_prefill_size = options.chunk,
                 .max_context_len = context,
                 .seed = options.seed},
                config, layout, machine.memory(), nullptr);
  bool same = true;  // rollout and training, so far
  std::map<std::string, EventSum> sums;
  std::vector<std::string> order;
  bool counts = false;
  Handoff handoff({.offload_train = true,
                   .offload_rollout = true,
                   .peak_device = gpu ? PeakDevice::gpu : PeakDevice::cpu},
                  actor, &engine, machine.memory(), [&](const HandoffEvent& event) {
                    if (!counts) return;
                    if (sums.find(event.name) == sums.end()) order.push_back(event.name);
                    EventSum& sum = sums[event.name];
                    sum.seconds += event.seconds;
                    sum.to_device += event.device.arrived;
                    sum.to_host += event.host.arrived;
                    ++sum.count;
                  });
  handoff.during("load", [&] {
    actor.load_weights([&](const Tensor& flat) { init_random_weights(config, layout, 1, flat); });
  });
  handoff.start();
  for (int64_t turn = 0; turn <= options.turns; ++turn) {
    counts = turn > 0;  // the first one warms up
    std::vector<TrainSample> samples;
    handoff.during("rollout.generate", [&] {
      std::vector<GenerateRequest> requests;
      for (int64_t i = 0; i < options.requests; ++i)
        requests.push_back({.id = i,
                            .prompt = random_ids(config, options.prompt_len, i / options.group),
                            .params = {.max_new_tokens = options.new_tokens, .ignore_eos = true},
                            .group = i / options.group});
      const auto results = engine.generate(requests, {.weight_version = actor.weight_version()});
      for (size_t i = 0; i < results.size(); ++i) {
        TrainSample sample;
        sample.tokens = requests[i].prompt;
        sample.tokens.insert(sample.tokens.end(), results[i].output_ids.begin(),
                             results[i].output_ids.end());
        sample.response_length = options.new_tokens;
        sample.loss_mask.assign(results[i].output_ids.size(), 1);
        sample.old_log_probs = results[i].log_probs;
        sample.advantages.assign(results[i].output_ids.size(), i % 2 == 0 ? 1.0F : -1.0F);
        samples.push_back(std::move(sample));
      }
    });
    handoff.after_generate();
    handoff.during("actor.train", [&] {
      double difference = 0;
      const auto again = actor.log_probs(Policy::actor, samples, 1.0F);
      for (size_t s = 0; s < samples.size(); ++s)
        for (size_t i = 0; i < again[s].size(); ++i) {
          const double d = std::abs(double{again[s][i]} - double{samples[s].old_log_probs[i]});
          if (!(d <= difference)) difference = d;
          same = same && d == 0;  // NaN is not
        }
      const StepResult result = actor.train_step(samples, {});
      same = same && !result.skipped;
      fmt::print("turn {}: train_rollout_logprob_abs_diff {} on {} samples, grad norm {:.4f}\n",
                 turn, difference, samples.size(), result.grad_norm);
    });
    handoff.after_train();
  }
  double whole = 0, moving = 0;
  for (const auto& [name, sum] : sums) {
    whole += sum.seconds;
    if (name != "rollout.generate" && name != "actor.train") moving += sum.seconds;
  }
  fmt::print("{:<26}{:>12}{:>14}{:>14}{:>10}\n", "event", "seconds", "to device", "to host",
             "GB/s");
  for (const std::string& name : order) {
    const EventSum& sum = sums[name];
    const int64_t bytes = sum.to_device + sum.to_host;
    fmt::print(
        "{:<26}{:>12.4f}{:>14}{:>14}{:>10}\n", name, sum.seconds / static_cast<double>(sum.count),
        format_bytes(sum.to_device / sum.count), format_bytes(sum.to_host / sum.count),
        bytes > 0 ? fmt::format("{:.1f}", static_cast<double>(bytes) / sum.seconds * 1e-9) : "");
  }
  fmt::print(
      "pinned copies {:.1f} GB/s in, {:.1f} out; handoff {:.1f}% of a turn; peaks: device {}, host "
      "{}; {} peak\n",
      in * 1e-9, out * 1e-9, 100 * moving / whole,
      format_bytes(machine.ledger().usage(Place::device).peak),
      format_bytes(machine.ledger().usage(Place::host).peak), options.peak);
  return same ? 0 : 1;
}

int run(int argc, char** argv) {
  CLI::App app("Speed of rollout, training and handoff");
  Options options;
  app.add_option("--model", options.model);
  app.add_option("--device", options.device)->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_option("--dtype", options.dtype)->check(CLI::IsMember({"bfloat16", "float32"}));
  app.add_option("--layers", options.layers, "instead of the model's");
  app.add_option("--seed", options.seed);
  app.add_option("--repeats", options.repeats)->check(CLI::PositiveNumber);
  app.add_option("--requests", options.requests)->check(CLI::PositiveNumber);
  app.add_option("--group", options.group, "requests that share a prompt")
      ->check(CLI::PositiveNumber);
  app.add_option("--prompt-len", options.prompt_len)->check(CLI::PositiveNumber);
  app.add_option("--new-tokens", options.new_tokens)->check(CLI::PositiveNumber);
  app.add_option("--min-len", options.min_len);
  app.add_option("--max-len", options.max_len);
  app.add_option("--chunk", options.chunk, "tokens of prefill a step")->check(CLI::PositiveNumber);
  app.add_flag("!--no-true-on-policy", options.true_on_policy, "products unrestricted");
  app.add_flag("!--disable-overlap-schedule", options.overlap_schedule,
               "no step is begun before the host knows the last one's draws");
  app.add_option("--tokens", options.tokens, "of a training step")->check(CLI::PositiveNumber);
  app.add_option("--seq-len", options.seq_len)->check(CLI::PositiveNumber);
  app.add_option("--max-tokens-per-gpu", options.max_tokens_per_gpu)->check(CLI::PositiveNumber);
  app.add_option("--log-probs-chunk-size", options.log_probs_chunk_size,
                 "rows of logits at a time; 0: as the trainer chooses")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--recompute-num-layers", options.recompute_num_layers,
                 "blocks that the backward recomputes; 0: all activations are kept (default: all)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--placement", options.placement);
  app.add_option("--peak", options.peak)->check(CLI::IsMember({"cpu", "gpu"}));
  app.add_option("--turns", options.turns)->check(CLI::PositiveNumber);
  app.add_subcommand("rollout")->fallthrough();
  app.add_subcommand("train")->fallthrough();
  app.add_subcommand("handoff")->fallthrough();
  app.require_subcommand(1);
  CLI11_PARSE(app, argc, argv);
  if (options.max_len < options.min_len)
    fail(ErrorCode::flags, "--max-len {} is below --min-len {}", options.max_len, options.min_len);
  const std::string part = app.get_subcommands().front()->get_name();
  if (part == "rollout") rollout(options);
  if (part == "train") train(options);
  if (part == "handoff") return handoff(options);
  return 0;
}

}  // namespace
}  // namespace miles::bench

int main(int argc, char** argv) {
  return miles::bench::run_main([&] { return miles::bench::run(argc, argv); });
}
