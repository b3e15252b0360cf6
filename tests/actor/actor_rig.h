// A small model, a trainer on it and samples to learn from.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actor/actor_model.h"
#include "base/file.h"
#include "base/rng.h"
#include "hub/safetensors.h"
#include "model/weights_io.h"
#include "tests/support/shared.h"
#include "tests/support/small_model.h"
#include "tests/support/test_device.h"

namespace miles::test {

/// Four layers, so that windows of two turn over; an embedding of more than one layer's size, so
/// that it is several chunks.
inline ModelConfig deep_config(DType dtype, bool tied = true) {
  ModelConfig config = small_config(dtype);
  config.num_hidden_layers = 4;
  config.tie_word_embeddings = tied;
  config.initializer_range = 0.2;
  return config;
}

inline ActorOptions actor_options(ActorPlacement placement) {
  return {.placement = placement,
          .max_tokens_per_gpu = 48,
          .max_tokens_per_step = 400,
          .max_sequences_per_step = 12,
          .max_sequence_length = 48,
          .log_probs_chunk_size = 7,
          .with_reference = true,
          .optimizer = {.schedule = {.lr = 1e-2, .style = LrDecayStyle::constant},
                        .weight_decay = 0.1F}};
}

/// GRPO with everything that a loss can have.
inline LossOptions full_loss() {
  return {.policy = {.eps_clip = 0.2F,
                     .eps_clip_high = 0.28F,
                     .entropy_coef = 0.01F,
                     .use_kl_loss = true,
                     .kl_loss_coef = 0.05F,
                     .kl_loss_type = KlLossType::low_var_kl},
          .temperature = 0.8F};
}

/// Ten samples of 8 to 44 tokens; one that is masked out, one whose prompt is a single token. Their
/// log-probs are the uniform distribution's until a trainer gives its own.
inline std::vector<TrainSample> some_samples(uint64_t seed = 1) {
  std::vector<TrainSample> samples;
  for (uint64_t s = 0; s < 10; ++s) {
    const auto draw = [&](uint64_t bound, uint64_t counter) {
      return uniform_below(bound, seed, RngUse::test, s, counter);
    };
    TrainSample sample;
    const auto prompt = s == 3 ? 1 : 3 + draw(10, 0);
    sample.response_length = static_cast<int64_t>(5 + draw(27, 1));
    const auto length = static_cast<size_t>(sample.response_length);
    for (uint64_t i = 0; i < prompt + length; ++i)
      sample.tokens.push_back(static_cast<int32_t>(draw(258, 10 + i)));
    for (uint64_t i = 0; i < length; ++i)
      sample.loss_mask.push_back(s == 6 || draw(8, 1000 + i) == 0 ? 0 : 1);
    sample.old_log_probs.assign(length, -5.7F);
    sample.advantages.assign(length, normal(seed, RngUse::test, s, 2000));
    samples.push_back(std::move(sample));
  }
  return samples;
}

class ActorRig {
 public:
  ActorRig(const ModelConfig& model_config, const ActorOptions& options, uint64_t seed = 1)
      : config(model_config), actor(options, config, layout, {*device, ledger}) {
    actor.load_weights(
        [&](const Tensor& flat) { init_random_weights(config, layout, seed, flat); });
  }

  int64_t device_bytes() const { return ledger.usage(Place::device).total; }
  std::map<std::string, int64_t> device_tags() const { return ledger.usage(Place::device).by_tag; }
  std::map<std::string, int64_t> host_tags() const { return ledger.usage(Place::host).by_tag; }
  std::vector<std::byte> weights() {
    const Region staging = actor.commit_save_staging();
    const Tensor flat = actor.read_weights(staging, 0, layout.elements());
    const auto* bytes = static_cast<const std::byte*>(flat.data());
    return {bytes, bytes + flat.bytes()};
  }
  /// The checkpoint's bytes: weights, moments, low halves and counts.
  std::string state() {
    const ScratchDir directory;
    actor.save_state(directory.path());
    return read_file(directory / "trainer.safetensors");
  }

  const ModelConfig config;
  const ParamLayout layout{config};
  const std::unique_ptr<Device> device = make_test_device();
  Ledger ledger;
  ActorModel actor;
};

inline std::string name_of(ActorPlacement placement) {
  switch (placement) {
    case ActorPlacement::resident:
      return "resident";
    case ActorPlacement::loaded:
      return "loaded";
    case ActorPlacement::streamed:
      return "streamed";
  }
  return "";
}

inline constexpr std::array kPlacements = {ActorPlacement::resident, ActorPlacement::loaded,
                                           ActorPlacement::streamed};

}  // namespace miles::test
