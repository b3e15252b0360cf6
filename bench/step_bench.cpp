// How much of the time goes to something other than matrix products: the training step over the sum
// of its bare GEMM calls, and decode's likewise, alternating in one run.
//   OMP_NUM_THREADS=2 step_bench                    Qwen3-0.6B's shape, random weights
//   step_bench --layers 4 --vocab 8192              a shorter try
//   step_bench --assert-ratio 1.3                   exits with 1 when either is above
//   step_bench --json                               one line of JSON, for scripts/compare_peer.py
#include <fmt/format.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "actor/actor_model.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/rng.h"
#include "bench/bench_model.h"
#include "bench/op_trace.h"
#include "model/weights_io.h"
#include "ops/cpu/gemm.h"
#include "rollout/engine.h"

namespace miles::bench {
namespace {

struct Options : Shape {
  int64_t batch = 4;
  int64_t seq_len = 256;
  int64_t prompt_len = 64;
  int64_t new_tokens = 64;
  int64_t repeats = 3;
  int64_t recompute_num_layers = 0;
  std::string phases = "both";
  double assert_ratio = 0;  // 0: nothing is asserted
  bool json = false;

  bool has(const std::string& phase) const { return phases == "both" || phases == phase; }
};

/// A step and its bare products, in seconds; the smaller the noise, the nearer the two medians are
/// to the machine's own.
struct Measurement {
  std::vector<double> step, bare;
  Trace trace;        // of one step
  double tokens = 0;  // of one step

  static double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  }
  double step_seconds() const { return median(step); }
  double bare_seconds() const { return median(bare); }
  double ratio() const { return step_seconds() / bare_seconds(); }
  double tokens_per_second() const { return tokens / step_seconds(); }
};

struct Generated {
  Measurement decode;
  std::vector<double> seconds;          // of a whole generation
  std::vector<double> prefill_seconds;  // until each sequence has its first token
  double median_seconds() const { return Measurement::median(seconds); }
};

/// Runs and times a function.
template <class Work>
double timed(const Work& work) {
  const Stopwatch watch;
  work();
  return watch.seconds();
}

/// Where bare products run.
class Bare {
 public:
  explicit Bare(Device& device)
      : stream_(device.make_stream(StreamUse::compute)),
        workspace_(std::make_unique<Workspace>()),
        exec_{device, *stream_, workspace_->bytes} {}
  double seconds(const Trace& trace) {
    return timed([&] { replay(exec_, trace.gemms); });
  }

 private:
  struct alignas(64) Workspace {
    std::byte bytes[kWorkspaceBytes];
  };
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Workspace> workspace_;
  Exec exec_;
};

/// Multiply-adds times two of `rows` through the weights of a layer's products, or the head's.
struct Flops {
  explicit Flops(const ModelConfig& config)
      : down(2.0 * static_cast<double>(config.hidden_size * config.intermediate_size)),
        layer(2.0 *
                  static_cast<double>(config.hidden_size * (config.qkv_size() + config.q_size())) +
              3 * down),
        head(2.0 * static_cast<double>(config.hidden_size * config.vocab_size)) {}
  double down, layer, head;
};

/// The trace holds the products that the model is made of, no fewer and no more.
void check_flops(const Trace& trace, double expected) {
  const double found = trace.gemm_flops();
  if (std::abs(found - expected) > 1e-9 * expected)
    fail(ErrorCode::internal, "traced products of {:.6e} operations, where the model has {:.6e}",
         found, expected);
}

Measurement measure_train(const ModelConfig& config, const Options& options) {
  const ParamLayout layout(config);
  const auto device = make_cpu_device();
  Ledger ledger;
  const int64_t tokens = options.batch * options.seq_len;
  ActorModel actor({.placement = ActorPlacement::resident,
                    .max_tokens_per_gpu = tokens,
                    .max_tokens_per_step = tokens,
                    .max_sequences_per_step = options.batch,
                    .max_sequence_length = options.seq_len,
                    .recompute_num_layers = options.recompute_num_layers,
                    .optimizer = {.schedule = {.style = LrDecayStyle::constant}}},
                   config, layout, {*device, ledger});
  actor.load_weights([&](const Tensor& flat) { init_random_weights(config, layout, 1, flat); });
  actor.onload();
  const std::vector<TrainSample> samples = make_samples(config, options.batch, options.seq_len);
  const auto step = [&] { actor.train_step(samples, {}); };

  Measurement result;
  result.tokens = static_cast<double>(tokens);
  step();  // brings memory and makes kernels
  start_trace();
  step();
  result.trace = stop_trace();
  const Flops flops(config);
  const int64_t layers = layout.layers();
  const auto recomputed = static_cast<double>(std::min(options.recompute_num_layers, layers));
  check_flops(result.trace,
              result.tokens * (static_cast<double>(layers) * 3 * flops.layer +
                               recomputed * (flops.layer - flops.down)) +
                  static_cast<double>(options.batch * (options.seq_len - 1)) * 3 * flops.head);
  Bare bare(*device);
  for (int64_t i = 0; i < options.repeats; ++i) {
    result.bare.push_back(bare.seconds(result.trace));
    result.step.push_back(timed(step));
  }
  return result;
}

/// Generates once; each decode step is followed by its bare products where `bare` is given.
void generate(Engine& engine, const ModelConfig& config, const Options& options, Bare* bare,
              Generated& result) {
  for (int64_t s = 0; s < options.batch; ++s)
    engine.add_request({.id = s,
                        .prompt = random_ids(config, options.prompt_len, s),
                        .params = {.max_new_tokens = options.new_tokens, .ignore_eos = true}});
  double prefill = 0, decode = 0;
  while (engine.has_unfinished()) {
    const bool traces = bare == nullptr;
    if (traces) start_trace();
    const double seconds = timed([&] { engine.step(); });
    Trace trace = traces ? stop_trace() : Trace{};
    if (engine.stats().prefill_tokens > 0) {
      prefill += seconds;
      continue;
    }
    decode += seconds;
    if (traces) {
      result.decode.trace = std::move(trace);  // the last step's stays
    } else {
      result.decode.step.push_back(seconds);
      result.decode.bare.push_back(bare->seconds(result.decode.trace));
    }
  }
  if (bare == nullptr) return;
  result.seconds.push_back(prefill + decode);
  result.prefill_seconds.push_back(prefill);
}

Generated measure_generate(const ModelConfig& config, const Options& options) {
  const ParamLayout layout(config);
  const auto device = make_cpu_device();
  Ledger ledger;
  const Memory memory{*device, ledger};
  EngineOptions engine_options;
  engine_options.overlap_schedule = false;  // step() is to run the step that it tells of
  engine_options.max_running_requests = options.batch;
  engine_options.max_context_len = options.prompt_len + options.new_tokens;
  const int64_t page = engine_options.page_size;
  engine_options.max_total_tokens =
      options.batch * (engine_options.max_context_len + page - 1) / page * page + page;
  Engine engine(engine_options, config, layout, memory, nullptr);
  engine.onload_weights();
  engine.onload_kv();
  {
    Region staging(memory, Place::host, "staging", layout.elements() * size_of(config.dtype));
    staging.commit();
    const Tensor flat = staging.tensor(config.dtype, {layout.elements()});
    init_random_weights(config, layout, 1, flat);
    engine.update_weights(flat, 1);
  }
  Generated result;
  result.decode.tokens = static_cast<double>(options.batch);
  generate(engine, config, options, nullptr, result);  // warms up, and traces
  const Flops flops(config);
  check_flops(
      result.decode.trace,
      result.decode.tokens * (static_cast<double>(layout.layers()) * flops.layer + flops.head));
  Bare bare(*device);
  for (int64_t i = 0; i < options.repeats; ++i) generate(engine, config, options, &bare, result);
  return result;
}

std::string gemm_path(const ModelConfig& config) {
  if (config.dtype == DType::f32) return "f32";
  return use_amx(config.hidden_size) ? "amx" : "no amx";
}

void print_row(const char* phase, const Measurement& m) {
  fmt::print("{:<8}{:>12.4f}{:>14.4f}{:>9.3f}{:>12.1f}{:>14.0f}\n", phase, m.step_seconds(),
             m.bare_seconds(), m.ratio(), m.tokens_per_second(),
             m.trace.gemm_flops() / m.bare_seconds() * 1e-9);
}

void print_ops(const char* phase, const Measurement& m) {
  fmt::print("\n{}, one traced step{:>16}{:>11}\n", phase, "calls", "seconds");
  for (const OpTime& op : m.trace.ops)
    fmt::print("  {:<24}{:>8}{:>11.4f}\n", op.name, op.calls, op.seconds);
  fmt::print("  {:<32}{:>11.4f}\n", "in no op", m.trace.seconds - m.trace.op_seconds());
}

nlohmann::ordered_json to_json(const Measurement& m) {
  nlohmann::ordered_json ops;
  for (const OpTime& op : m.trace.ops) ops[op.name] = op.seconds;
  return {{"step_seconds", m.step_seconds()},
          {"bare_gemm_seconds", m.bare_seconds()},
          {"ratio", m.ratio()},
          {"tokens_per_s", m.tokens_per_second()},
          {"gemm_flops", m.trace.gemm_flops()},
          {"op_seconds", ops}};
}

/// Exit code.
int run(const Options& options) {
  const ModelConfig config = make_config(options);
  std::vector<std::pair<const char*, Measurement>> rows;
  nlohmann::ordered_json json = {{"program", "miles"},
                                 {"model", options.model},
                                 {"dtype", options.dtype},
                                 {"layers", config.num_hidden_layers},
                                 {"batch", options.batch},
                                 {"seq_len", options.seq_len},
                                 {"prompt_len", options.prompt_len},
                                 {"new_tokens", options.new_tokens},
                                 {"recompute_num_layers", options.recompute_num_layers},
                                 {"threads", omp_get_max_threads()},
                                 {"gemm", gemm_path(config)}};
  if (options.has("decode")) {
    const Generated generated = measure_generate(config, options);
    const auto count = static_cast<double>(options.batch);
    json["generate_tokens_per_s"] =
        count * static_cast<double>(options.new_tokens) / generated.median_seconds();
    json["prefill_tokens_per_s"] = count * static_cast<double>(options.prompt_len) /
                                   Measurement::median(generated.prefill_seconds);
    rows.emplace_back("decode", generated.decode);
  }
  if (options.has("train")) rows.emplace_back("train", measure_train(config, options));
  bool passed = true;
  for (const auto& [phase, m] : rows) {
    json[phase] = to_json(m);
    passed = passed && (options.assert_ratio <= 0 || m.ratio() <= options.assert_ratio);
  }
  if (options.json) {
    fmt::print("{}\n", json.dump());
    return passed ? 0 : 1;
  }
  for (const auto& [phase, m] : rows) print_ops(phase, m);
  fmt::print(
      "\n{}, {} layers, {}, {}, {} threads; batch {}, trained {} tokens, generated {} + {}\n",
      options.model, config.num_hidden_layers, options.dtype, gemm_path(config),
      omp_get_max_threads(), options.batch, options.seq_len, options.prompt_len,
      options.new_tokens);
  fmt::print("{:<8}{:>12}{:>14}{:>9}{:>12}{:>14}\n", "phase", "step s", "bare GEMMs s", "ratio",
             "tokens/s", "bare GFLOP/s");
  for (const auto& [phase, m] : rows) print_row(phase, m);
  if (options.assert_ratio > 0)
    fmt::print("ratio at most {}: {}\n", options.assert_ratio, passed ? "yes" : "NO");
  return passed ? 0 : 1;
}

int main(int argc, char** argv) {
  CLI::App app("The training step and decode over the sum of their bare GEMM calls.");
  Options o;
  const auto count = [&](const char* flag, int64_t& to, const char* what) {
    app.add_option(flag, to, what)->check(CLI::PositiveNumber)->capture_default_str();
  };
  app.add_option("--model", o.model, "a preset")->capture_default_str();
  app.add_option("--layers", o.layers, "blocks instead of the model's");
  app.add_option("--vocab", o.vocab, "vocabulary instead of the model's");
  app.add_option("--dtype", o.dtype, "of the weights")
      ->check(CLI::IsMember({"bfloat16", "float32"}))
      ->capture_default_str();
  count("--batch", o.batch, "sequences, in both phases");
  count("--seq-len", o.seq_len, "tokens a trained sequence");
  count("--prompt-len", o.prompt_len, "tokens of a prompt");
  count("--new-tokens", o.new_tokens, "tokens to generate, >= 2");
  count("--repeats", o.repeats, "timed steps, and timed generations");
  app.add_option("--recompute-num-layers", o.recompute_num_layers,
                 "blocks that the backward recomputes; 0: all activations are kept")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--phases", o.phases, "")
      ->check(CLI::IsMember({"both", "train", "decode"}))
      ->capture_default_str();
  app.add_option("--assert-ratio", o.assert_ratio, "fail when a ratio is above");
  app.add_flag("--json", o.json, "one line of JSON instead of tables");
  CLI11_PARSE(app, argc, argv);
  try {
    return run(o);
  } catch (const Error& error) {
    log::error("{}", error.what());
    return error.exit_code();
  }
}

}  // namespace
}  // namespace miles::bench

int main(int argc, char** argv) {
  return miles::bench::main(argc, argv);
}
