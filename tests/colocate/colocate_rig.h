// Trainer and engine on one device, taking turns.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "colocate/plan.h"
#include "tests/actor/actor_rig.h"
#include "tests/support/test_device.h"
#include "text/tokenizer.h"

namespace miles::test {

inline EngineOptions engine_options() {
  return {.max_total_tokens = 1024,
          .page_size = 16,
          .max_running_requests = 16,
          .chunked_prefill_size = 64,
          .max_context_len = 48,
          .seed = 7};
}

/// One way to share the device.
struct Sharing {
  std::string name;
  HandoffOptions handoff;
  ActorPlacement placement;
};

/// All that the command line can ask for.
inline std::vector<Sharing> sharings() {
  const HandoffOptions none{};
  const HandoffOptions train{.offload_train = true};
  const HandoffOptions rollout{.offload_rollout = true};
  const HandoffOptions cpu{.offload_train = true, .offload_rollout = true};
  const HandoffOptions gpu{
      .offload_train = true, .offload_rollout = true, .peak_device = PeakDevice::gpu};
  return {{"no_offload", none, ActorPlacement::resident},
          {"offload_train", train, ActorPlacement::loaded},
          {"offload_rollout", rollout, ActorPlacement::resident},
          {"cpu_loaded", cpu, ActorPlacement::loaded},
          {"cpu_streamed", cpu, ActorPlacement::streamed},
          {"gpu_loaded", gpu, ActorPlacement::loaded},
          {"gpu_streamed", gpu, ActorPlacement::streamed}};
}

/// The actor's options that the rig uses when none are given.
inline ActorOptions colocated_actor(ActorPlacement placement) {
  ActorOptions options = actor_options(placement);
  options.max_sequence_length = 48;
  return options;
}

class ColocateRig {
 public:
  struct Setup {
    ModelConfig config = deep_config(DType::bf16);
    ActorOptions actor = {};
    EngineOptions engine = engine_options();
    HandoffOptions handoff = {};
    MemoryBudget budget = {};
    Device* engine_device = nullptr;  // another one than the actor's
    int steps = 1;                    // of training in a turn
  };

  explicit ColocateRig(const Setup& setup)
      : steps(setup.steps),
        config(setup.config),
        ledger(setup.budget),
        actor(setup.actor, config, layout, {*device, ledger}),
        engine(setup.engine, config, layout,
               {setup.engine_device == nullptr ? *device : *setup.engine_device, ledger},
               &tokenizer),
        handoff(setup.handoff, actor, &engine, {*device, ledger},
                [this](const HandoffEvent& event) { events.push_back(event); }) {}

  void load() {
    handoff.during("load", [&] {
      actor.load_weights([&](const Tensor& flat) { init_random_weights(config, layout, 1, flat); });
    });
  }
  /// Responses to four prompts, four each.
  std::vector<TrainSample> generate() {
    std::vector<TrainSample> samples;
    handoff.during("rollout.generate", [&] {
      std::vector<GenerateRequest> requests;
      for (int64_t i = 0; i < 8; ++i)
        requests.push_back({.id = i,
                            .prompt = {3, 1, static_cast<int32_t>(i / 4 + 5), 9, 2},
                            .params = {.temperature = 0.8F, .max_new_tokens = 20},
                            .group = i / 4});
      const auto results = engine.generate(requests, {.weight_version = actor.weight_version()});
      for (size_t i = 0; i < results.size(); ++i)
        samples.push_back(to_sample(requests[i].prompt, results[i], i % 2 == 0 ? 1.0F : -1.0F));
    });
    return samples;
  }
  StepResult train(std::vector<TrainSample> samples) {
    StepResult result;
    handoff.during("actor.train", [&] {
      const LossOptions loss = full_loss();
      const auto reference = actor.log_probs(Policy::reference, samples, loss.temperature);
      for (size_t s = 0; s < samples.size(); ++s) samples[s].ref_log_probs = reference[s];
      for (int step = 0; step < steps; ++step) result = actor.train_step(samples, loss);
    });
    return result;
  }
  /// Generate, hand over, train, hand back.
  StepResult turn() {
    const auto samples = generate();
    handoff.after_generate();
    const StepResult result = train(samples);
    handoff.after_train();
    return result;
  }

  static TrainSample to_sample(const std::vector<int32_t>& prompt, const GenerateResult& result,
                               float advantage) {
    TrainSample sample;
    sample.tokens = prompt;
    sample.tokens.insert(sample.tokens.end(), result.output_ids.begin(), result.output_ids.end());
    sample.response_length = std::ssize(result.output_ids);
    sample.loss_mask.assign(result.output_ids.size(), 1);
    sample.old_log_probs = result.log_probs;
    sample.advantages.assign(result.output_ids.size(), advantage);
    return sample;
  }

  std::vector<std::string> event_names() const {
    std::vector<std::string> names;
    for (const HandoffEvent& event : events) names.push_back(event.name);
    return names;
  }

  const int steps;
  const ModelConfig config;
  const ParamLayout layout{config};
  const Tokenizer tokenizer = Tokenizer::bytes();
  const std::unique_ptr<Device> device = make_test_device();
  Ledger ledger;
  std::vector<HandoffEvent> events;
  ActorModel actor;
  Engine engine;
  Handoff handoff;
};

}  // namespace miles::test
