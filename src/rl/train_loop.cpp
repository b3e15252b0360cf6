#include "rl/train_loop.h"

#include <signal.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/clock.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/shell.h"
#include "base/units.h"
#include "observe/eval_metrics.h"
#include "rl/checkpoint.h"
#include "rl/equal_rewards.h"
#include "rl/fingerprint.h"
#include "rl/rollout_executor.h"
#include "rl/rollout_metrics.h"
#include "rl/run_recorder.h"
#include "rl/run_start.h"
#include "rl/sampling.h"
#include "rl/supervised.h"
#include "rl/training_turn.h"

namespace miles {
namespace {

class TrainLoop {
 public:
  TrainLoop(TrainSetup& setup, const std::string& resolved_flags)
      : setup_(setup),
        config_(setup.config),
        start_(find_start(setup)),
        last_checkpoint_(start_.checkpoint),
        scorer_(make_scorer(config_)),
        directories_(config_, start_),
        ledger_(setup.plan.budget),
        memory_{*setup.device, ledger_},
        resolved_flags_(resolved_flags),
        actor_(setup.plan.actor, setup.model.config(), setup.layout, memory_),
        engine_(config_.generates()
                    ? std::make_unique<Engine>(setup.plan.engine, setup.model.config(),
                                               setup.layout, memory_, &setup.tokenizer)
                    : nullptr),
        handoff_(config_.colocate.handoff, actor_, engine_.get(), memory_,
                 [this](const HandoffEvent& event) { on_event(event); }) {
    if (engine_)
      executor_.emplace(config_, setup.model.config(), setup.tokenizer, *engine_, scorer_.get());
  }

  TrainSummary run() {
    rollout_id_ = start_.first_rollout;
    load();
    catch_interrupts();  // before, there is nothing to end well
    start_records();
    try {
      turns();
    } catch (const Interrupted& interruption) {
      summary_.signal = interruption.signal();
      recorder_->forget_unfinished(rollout_id_);
    } catch (const std::exception&) {
      leave_in_order();
      throw;
    }
    report();
    if (summary_.signal != 0)
      say_how_to_go_on(summary_.signal == SIGINT ? "SIGINT (Ctrl-C)" : "SIGTERM");
    summary_.device_peak = ledger_.usage(Place::device).peak;
    summary_.host_peak = ledger_.usage(Place::host).peak;
    return summary_;
  }

 private:
  void turns() {
    handoff_.start();
    if (start_.checkpoint && rollout_id_ >= setup_.num_rollout)
      log::warn("--num-rollout {}: {} are done already", setup_.num_rollout, rollout_id_);
    if (eval_due_before()) evaluate(rollout_id_ - 1);
    begin_row();
    for (; rollout_id_ < setup_.num_rollout; ++rollout_id_) {
      stop_if_interrupted();
      turn();
      if (exits_early()) {
        log::info("--debug-exit-after-rollout {}", *config_.debug_exit_after_rollout);
        break;
      }
    }
  }

  void report() {
    if (recorder_->write_report())
      log::info("report: {}", (recorder_->directory() / "report.html").string());
  }

  /// After an error, which may be that nothing can be written any more.
  void leave_in_order() {
    try {
      recorder_->forget_unfinished(rollout_id_);
      report();
    } catch (const std::exception& error) {
      log::warn("no report: {}", error.what());
    }
    say_how_to_go_on("an error");
  }

  /// What an early end left, and what to do about it.
  void say_how_to_go_on(const char* ended_by) const {
    const int64_t done = start_.first_rollout + recorded_;
    log::warn("ended by {}: {} of {} rollouts are done{}", ended_by, done, setup_.num_rollout,
              config_.run_dir.empty() ? "" : fmt::format(", on record in {}", config_.run_dir));
    if (!last_checkpoint_) {
      log::warn("there is no checkpoint to go on from: {}",
                config_.checkpoint.save.empty()
                    ? "--save was not given"
                    : "none was due; --save-interval N saves every N rollouts");
      return;
    }
    const std::string flags =
        config_.run_dir.empty()
            ? "with the same flags and"
            : "with miles train --config " + shell_word(config_.run_dir + "/config.toml");
    // What it loaded may be one of several in its directory.
    const std::string load = last_checkpoint_ == start_.checkpoint ? last_checkpoint_->string()
                                                                   : config_.checkpoint.save;
    log::warn("the last checkpoint is {}; go on {} --load {}", last_checkpoint_->string(), flags,
              shell_word(load));
  }

  void load() {
    log::info("model: {}, {:.2f} M parameters", setup_.model.description(),
              static_cast<double>(setup_.layout.parameters()) / 1e6);
    if (start_.checkpoint) setup_.data.restore(start_.state.data);
    handoff_.during("load", [&] {
      // The reference is the first weights, also of a run that goes on.
      actor_.load_weights([&](const Tensor& flat) {
        setup_.model.fill(setup_.layout, flat);
        note_reference(flat);
      });
      if (setup_.reference)
        actor_.load_reference([&](const Tensor& flat) {
          setup_.reference->fill(setup_.layout, flat);
          note_reference(flat);
        });
      if (start_.checkpoint) {
        check_fingerprint(start_.state.fingerprint, reference_, *start_.checkpoint);
        reading(*start_.checkpoint, [&] { actor_.load_state(*start_.checkpoint); });
        log::info("resumed from {} at rollout {}", start_.checkpoint->string(),
                  start_.first_rollout + 1);
      }
    });
  }

  /// Which weights the reference is, wherever they lie now.
  void note_reference(const Tensor& flat) {
    if (config_.algorithm.needs_reference()) reference_ = reference_fingerprint(flat);
  }

  /// Nothing of an earlier run's records is touched before this one is known to be able to begin.
  void start_records() {
    if (config_.run_dir.empty()) log::warn("nothing is recorded: --run-dir DIR was not given");
    const Device& device = *setup_.device;
    recorder_.emplace(config_.run_dir,
                      RecordStart{.run = {.run_id = start_.run_id,
                                          .device = device.name(),
                                          .device_is_gpu = device.kind() == DeviceKind::cuda},
                                  .first_rollout = start_.first_rollout,
                                  .resumed = start_.checkpoint.has_value()});
    recorder_->write_config(resolved_flags_);
    for (const HandoffEvent& event : early_events_)
      recorder_->handoff(event, rollout_id_, setup_.plan.budget);
    early_events_.clear();
  }

  void turn() {
    Metrics metrics;
    std::vector<Sample> samples;
    const bool supervised = config_.algorithm.loss.type == LossType::sft_loss;
    handoff_.during("rollout.generate", [&] {
      samples = setup_.data.next_groups(config_.batch.rollout_batch_size,
                                        config_.batch.n_samples_per_prompt);
      if (supervised)
        learn_labels(samples);
      else
        executor_->generate(samples, rollout_id_, actor_.weight_version());
    });
    const std::vector<float> advantages =
        supervised ? std::vector<float>(samples.size(), 0.0F)
                   : group_advantages(samples, config_.algorithm.reward_norm());
    for (const auto& [name, value] : rollout_metrics(samples, advantages))
      if (!supervised || name != "rollout/reward_error") metrics.set(name, value);
    recorder_->samples(samples, advantages);
    if (!supervised) equal_rewards_.watch(rollout_id_ + 1, samples, advantages);

    handoff_.after_generate();
    handoff_.during("actor.train",
                    [&] { metrics.merge(training_turn(actor_, config_, samples, advantages)); });
    perf_metrics(metrics, samples);
    report_line(metrics);
    recorder_->metrics(rollout_id_, metrics);
    ++recorded_;
    begin_row();
    if (save_due()) save();
    // Nobody generates after the last rollout, unless it is evaluated.
    if (!is_last() || eval_due_after(rollout_id_)) handoff_.after_train();
    if (eval_due_after(rollout_id_)) evaluate(rollout_id_);
    ++summary_.rollouts;
    summary_.last_raw_reward = metrics.find("rollout/raw_reward").value_or(std::nan(""));
  }

  void learn_labels(std::span<Sample> samples) const {
    const ModelConfig& model = setup_.model.config();
    const auto& ends = model.eos_token_ids;
    const int64_t longest = max_sample_length(config_, model);
    const int64_t cut = answer_with_labels(
        samples, {.tokenizer = setup_.tokenizer,
                  .eos = ends.empty() ? std::nullopt : std::optional(ends.front()),
                  .max_length = longest});
    for (Sample& sample : samples) sample.rollout_id = rollout_id_;
    if (cut > 0)
      log::warn("rollout {}: {} labels were cut at {} tokens", rollout_id_ + 1, cut, longest);
  }

  /// What comes after a row (saving, handing back, evaluating) is timed in the next one, as in
  /// Miles.
  void begin_row() {
    times_.clear();
    since_row_.reset();
  }

  /// Before training; in a resumed run, when the evaluation after its checkpoint is not on record.
  bool eval_due_before() const {
    if (!start_.checkpoint) return config_.eval.interval && !config_.eval.skip_before_train;
    const int64_t last = rollout_id_ - 1;
    return eval_due_after(last) && std::ranges::any_of(setup_.eval_sets, [&](const EvalSet& set) {
             return !recorder_->has(last, eval_reward_metric(set.name));
           });
  }
  bool eval_due_after(int64_t rollout_id) const {
    return config_.eval.interval &&
           ((rollout_id + 1) % *config_.eval.interval == 0 || rollout_id + 1 == setup_.num_rollout);
  }
  bool exits_early() const {
    return config_.debug_exit_after_rollout && rollout_id_ + 1 >= *config_.debug_exit_after_rollout;
  }
  bool is_last() const { return rollout_id_ + 1 == setup_.num_rollout || exits_early(); }
  bool save_due() const {
    if (config_.checkpoint.save.empty()) return false;
    return is_last() || (config_.checkpoint.save_interval &&
                         (rollout_id_ + 1) % *config_.checkpoint.save_interval == 0);
  }

  void save() {
    // The checkpoint says that the rollout is done: its records must not be lost after that.
    recorder_->sync();
    nlohmann::ordered_json shared = fingerprint(setup_);
    shared.update(reference_);
    shared.update(rounding_fingerprint(setup_));
    handoff_.during("actor.save", [&] {
      last_checkpoint_ = CheckpointWriter{.directory = config_.checkpoint.save,
                                          .total_limit = config_.checkpoint.save_total_limit,
                                          .source = setup_.model,
                                          .layout = setup_.layout}
                             .save(actor_, {.run_id = start_.run_id,
                                            .rollout_id = rollout_id_,
                                            .data = setup_.data.state(),
                                            .fingerprint = shared});
    });
  }

  void evaluate(int64_t rollout_id) {
    Metrics metrics;
    for (const EvalSet& set : setup_.eval_sets) {
      const std::vector<Sample> samples =
          executor_->evaluate(set.source, rollout_id, actor_.weight_version());
      Mean reward, truncated;
      for (const Sample& sample : samples) {
        if (sample.reward) reward.add(*sample.reward);
        truncated.add(sample.status == SampleStatus::truncated ? 1 : 0);
      }
      metrics.set(eval_reward_metric(set.name), reward.mean());
      metrics.set(eval_truncated_metric(set.name), truncated.mean());
      log::info("eval {}: {:.4f} on {} samples", set.name, reward.mean(), samples.size());
    }
    recorder_->evaluation(rollout_id, metrics);
  }

  void perf_metrics(Metrics& metrics, const std::vector<Sample>& samples) const {
    int64_t drawn = 0;
    for (const Sample& sample : samples) drawn += sample.response_length;
    const auto took = [&](const char* event) {
      const auto entry = times_.find(event);
      return entry == times_.end() ? 0.0 : entry->second;
    };
    metrics.set("perf/rollout_time", took("rollout.generate"));
    if (config_.algorithm.loss.type != LossType::sft_loss)  // which draws nothing
      metrics.set("perf/tokens_per_gpu_per_sec",
                  static_cast<double>(drawn) / took("rollout.generate"));
    metrics.set("perf/train_time", took("actor.train"));
    metrics.set("perf/wake_up_time", took("actor.onload"));
    metrics.set("perf/sleep_time", took("actor.offload") + took("actor.clear_memory"));
    metrics.set("perf/update_weights_time", took("actor.update_weights"));
    metrics.set("perf/save_model_time", took("actor.save"));
    metrics.set("perf/step_time", since_row_.seconds());
    metrics.set("perf/device_memory_peak_gb",
                static_cast<double>(ledger_.usage(Place::device).peak) / (1 << 30));
  }

  void report_line(const Metrics& metrics) const {
    const auto show = [&](const char* name) { return metrics.find(name).value_or(std::nan("")); };
    // Supervised learning draws nothing and scores nothing. On policy the loss is 0 by definition:
    // what tells how a run fares is whether its entropy collapses.
    const bool supervised = config_.algorithm.loss.type == LossType::sft_loss;
    const std::string learning = supervised
                                     ? fmt::format("loss {:.4f}", show("train/loss"))
                                     : fmt::format("entropy {:.3f}", show("train/entropy_loss"));
    const std::string reward =
        supervised ? "" : fmt::format("  reward {:.3f}", show("rollout/raw_reward"));
    const std::string speed =
        supervised ? "" : fmt::format("  {:.0f} tok/s", show("perf/tokens_per_gpu_per_sec"));
    log::info("rollout {}/{}{}  {}  grad {:.2g}  len {:.1f}{}  step {}  device peak {}",
              rollout_id_ + 1, setup_.num_rollout, reward, learning, show("train/grad_norm"),
              show("rollout/response_len/mean"), speed, format_seconds(show("perf/step_time")),
              format_bytes(ledger_.usage(Place::device).peak));
  }

  void on_event(const HandoffEvent& event) {
    times_[event.name] += event.seconds;
    if (recorder_)
      recorder_->handoff(event, rollout_id_, setup_.plan.budget);
    else
      early_events_.push_back(event);
  }

  TrainSetup& setup_;
  const TrainConfig& config_;
  RunStart start_;
  EqualRewards equal_rewards_;
  std::optional<std::filesystem::path> last_checkpoint_;
  std::unique_ptr<Scorer> scorer_;  // its command starts before anything is loaded
  RunDirectories directories_;
  Ledger ledger_;
  Memory memory_;
  std::string resolved_flags_;              // config.toml's content
  std::optional<RunRecorder> recorder_;     // from start_records() on
  std::vector<HandoffEvent> early_events_;  // seen before
  ActorModel actor_;
  std::unique_ptr<Engine> engine_;           // null: nothing is generated
  std::optional<RolloutExecutor> executor_;  // the same
  Handoff handoff_;
  int64_t rollout_id_ = 0;
  int64_t recorded_ = 0;  // rollouts of this process that have a line in metrics.jsonl
  nlohmann::ordered_json reference_ = nlohmann::ordered_json::object();  // its fingerprint
  std::map<std::string, double> times_;  // seconds of events since the last row, by name
  Stopwatch since_row_;
  TrainSummary summary_;
};

}  // namespace

TrainSummary run_training(TrainSetup& setup, const std::string& resolved_flags) {
  return TrainLoop(setup, resolved_flags).run();
}

}  // namespace miles
