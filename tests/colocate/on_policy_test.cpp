// A token's log-prob is bitwise the same in rollout and in training: however it was drawn, and
// after every update of the weights.
#include <gtest/gtest.h>

#include "ops/cpu/gemm.h"
#include "tests/colocate/colocate_rig.h"

namespace miles {
namespace {

using test::colocated_actor;
using test::ColocateRig;
using test::deep_config;

constexpr float kTemperature = 0.8F;

struct Case {
  std::string name;
  DType dtype;
  EngineOptions engine;
  bool amx = false;   // attention as on AMX, whatever the machine has
  bool wide = false;  // extents that a GPU's tensor cores take

  ModelConfig config() const {
    ModelConfig config = deep_config(dtype);
    if (amx) config.head_dim = 32;
    return wide ? test::widened(config) : config;
  }
};

EngineOptions with(int64_t total, int64_t page, int64_t running, int64_t chunk) {
  return {.max_total_tokens = total,
          .page_size = page,
          .max_running_requests = running,
          .chunked_prefill_size = chunk,
          .max_context_len = 120,
          .seed = 3};
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string type : {"f32_", "bf16_", "amx_", "wide_"}) {
    const DType dtype = type == "f32_" ? DType::f32 : DType::bf16;
    const bool amx = type == "amx_", wide = type == "wide_";
    all.push_back({type + "roomy", dtype, with(4096, 16, 32, 512), amx, wide});
    all.push_back({type + "chunked", dtype, with(4096, 16, 32, 7), amx, wide});
    all.push_back({type + "preempted", dtype, with(150, 4, 8, 32), amx, wide});
    all.push_back({type + "one_by_one", dtype, with(512, 1, 1, 1), amx, wide});
  }
  return all;
}

class OnPolicy : public testing::TestWithParam<Case> {
 protected:
  OnPolicy() { set_emulate_amx(GetParam().amx); }
  ~OnPolicy() override { set_emulate_amx(false); }

  /// Prompts of 1 to 85 tokens, across a tile of keys; two groups share theirs.
  static std::vector<GenerateRequest> requests() {
    std::vector<GenerateRequest> all;
    for (int64_t i = 0; i < 11; ++i) {
      const int64_t group = i < 8 ? i / 4 : i;
      const int64_t length = 1 + group * 7 + (group > 7 ? group * 1 : 0);
      GenerateRequest request{.id = 40 + i};
      for (int64_t t = 0; t < length; ++t)
        request.prompt.push_back(static_cast<int32_t>((group * 31 + t * 17) % 250));
      request.params = {.temperature = kTemperature,
                        .top_k = i % 3 == 0 ? 20 : -1,
                        .max_new_tokens = 30,
                        .ignore_eos = i % 2 == 0};
      request.group = i < 8 ? group : kNoGroup;
      all.push_back(request);
    }
    return all;
  }
};

TEST_P(OnPolicy, TheTrainerScoresWhatTheEngineDrewToTheBit) {
  ActorOptions options = colocated_actor(ActorPlacement::streamed);
  options.max_tokens_per_gpu = 150;
  options.max_tokens_per_step = 1600;
  options.max_sequence_length = 120;
  ColocateRig rig(
      {.config = GetParam().config(),
       .actor = options,
       .engine = GetParam().engine,
       .handoff = {
           .offload_train = true, .offload_rollout = true, .peak_device = PeakDevice::gpu}});
  rig.load();
  rig.handoff.start();
  const auto asked = requests();
  std::vector<std::vector<float>> before;
  int64_t preemptions = 0, cached = 0;
  for (int turn = 0; turn < 3; ++turn) {
    SCOPED_TRACE("after " + std::to_string(turn) + " updates");
    const auto results = rig.engine.generate(asked, {.weight_version = rig.actor.weight_version()});
    std::vector<TrainSample> samples;
    std::vector<std::vector<float>> drawn;
    for (size_t i = 0; i < results.size(); ++i) {
      samples.push_back(
          ColocateRig::to_sample(asked[i].prompt, results[i], i % 2 == 0 ? 1.0F : -0.5F));
      drawn.push_back(results[i].log_probs);
      preemptions += results[i].preemptions;
      cached += results[i].cached_tokens;
    }
    rig.handoff.after_generate();
    const auto scored = rig.actor.log_probs(Policy::actor, samples, kTemperature);
    for (size_t i = 0; i < samples.size(); ++i) {
      ASSERT_EQ(scored[i].size(), drawn[i].size());
      for (size_t t = 0; t < drawn[i].size(); ++t)
        EXPECT_EQ(scored[i][t], drawn[i][t]) << "sample " << i << ", token " << t;
    }
    EXPECT_NE(drawn, before) << "the update did not reach the engine";
    before = drawn;
    // On policy, the ratio is exactly 1: the loss sees no difference at all.
    LossOptions loss;
    loss.temperature = kTemperature;
    const StepResult step = rig.actor.train_step(samples, loss);
    EXPECT_EQ(step.loss.ppo_kl, 0);
    EXPECT_EQ(step.loss.pg_clipfrac, 0);
    EXPECT_FALSE(step.skipped);
    rig.handoff.after_train();
  }
  EXPECT_EQ(preemptions > 0, GetParam().name.ends_with("preempted"));
  EXPECT_GT(cached, 0);
}

INSTANTIATE_TEST_SUITE_P(All, OnPolicy, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace miles
