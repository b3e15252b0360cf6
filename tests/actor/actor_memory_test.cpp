// What the trainer holds, and when: by tag, to the byte.
#include <gtest/gtest.h>

#include "tests/actor/actor_rig.h"
#include "tests/support/test_device.h"

namespace miles {
namespace {

using test::actor_options;
using test::ActorRig;
using test::deep_config;
using test::full_loss;
using test::kPlacements;
using test::some_samples;

using Tags = std::map<std::string, int64_t>;

std::vector<std::string> names(const Tags& tags) {
  std::vector<std::string> result;
  for (const auto& [name, bytes] : tags) result.push_back(name);
  return result;
}

StepResult train(ActorRig& rig) {
  const LossOptions loss = full_loss();
  std::vector<TrainSample> samples = some_samples();
  const auto reference = rig.actor.log_probs(Policy::reference, samples, loss.temperature);
  for (size_t s = 0; s < samples.size(); ++s) samples[s].ref_log_probs = reference[s];
  return rig.actor.train_step(samples, loss);
}

class ActorMemory : public testing::TestWithParam<ActorPlacement> {
 protected:
  bool resident() const { return GetParam() == ActorPlacement::resident; }
  ActorRig rig_{deep_config(DType::bf16), actor_options(GetParam())};
};

TEST_P(ActorMemory, AtRestHoldsTheStoreAndNothingElse) {
  using Names = std::vector<std::string>;
  const int64_t weight_bytes = rig_.layout.elements() * 2;
  switch (GetParam()) {
    case ActorPlacement::resident:
      EXPECT_EQ(names(rig_.device_tags()),
                (Names{"actor.optimizer", "actor.params", "actor.reference"}));
      EXPECT_TRUE(rig_.host_tags().empty());
      EXPECT_GE(rig_.device_tags()["actor.params"], weight_bytes);
      break;
    case ActorPlacement::loaded:
      EXPECT_TRUE(rig_.device_tags().empty());
      EXPECT_EQ(names(rig_.host_tags()),
                (Names{"store.optimizer", "store.params", "store.reference"}));
      EXPECT_GE(rig_.host_tags()["store.optimizer"], 5 * weight_bytes);  // low, m and v
      break;
    case ActorPlacement::streamed:
      EXPECT_TRUE(rig_.device_tags().empty());
      EXPECT_EQ(names(rig_.host_tags()),
                (Names{"store.activations", "store.grads", "store.optimizer", "store.params",
                       "store.reference"}));
      EXPECT_LT(rig_.host_tags()["store.params"], weight_bytes + 4096);
      break;
  }
}

TEST_P(ActorMemory, AWholeTurnLeavesEverythingAsItWas) {
  const Tags device = rig_.device_tags(), host = rig_.host_tags();
  for (int turn = 0; turn < 3; ++turn) {
    rig_.actor.onload();
    const Tags onloaded = rig_.device_tags();
    EXPECT_FALSE(train(rig_).skipped);
    EXPECT_GT(rig_.device_bytes(), 0);
    rig_.actor.clear_memory();
    EXPECT_EQ(rig_.device_tags(), onloaded)
        << "clear_memory leaves parameters and optimizer, no more";
    EXPECT_FALSE(onloaded.contains("actor.activations") || onloaded.contains("actor.grads") ||
                 onloaded.contains("actor.workspace"));
    rig_.actor.offload();
    EXPECT_EQ(rig_.device_tags(), device);
    EXPECT_EQ(rig_.host_tags(), host);
  }
}

TEST_P(ActorMemory, EveryCallMayComeTwice) {
  ActorRig other(deep_config(DType::bf16), actor_options(GetParam()));
  other.actor.onload();
  train(other);

  rig_.actor.offload();
  rig_.actor.clear_memory();
  rig_.actor.offload();
  rig_.actor.onload();
  const Tags onloaded = rig_.device_tags();
  rig_.actor.onload();
  EXPECT_EQ(rig_.device_tags(), onloaded);
  train(rig_);
  rig_.actor.onload();
  rig_.actor.clear_memory();
  rig_.actor.clear_memory();
  EXPECT_EQ(rig_.device_tags(), onloaded);
  rig_.actor.offload();
  rig_.actor.offload();
  EXPECT_EQ(rig_.device_bytes() > 0, resident());
  EXPECT_TRUE(rig_.weights() == other.weights());
  EXPECT_TRUE(rig_.state() == other.state());
}

TEST_P(ActorMemory, ARehearsalBooksWhatTheRealThingTakes) {
  rig_.actor.onload();
  rig_.ledger.begin_event();
  rig_.actor.rehearse_train();
  const int64_t device_peak = rig_.ledger.usage(Place::device).event_peak;
  const int64_t host_peak = rig_.ledger.usage(Place::host).event_peak;
  rig_.actor.clear_memory();
  rig_.ledger.begin_event();
  train(rig_);
  EXPECT_EQ(rig_.ledger.usage(Place::device).event_peak, device_peak);
  EXPECT_EQ(rig_.ledger.usage(Place::host).event_peak, host_peak);
}

TEST_P(ActorMemory, TheHeadTakesMemoryOnlyBeyondWhatABlockTakes) {
  const auto take = [&](int64_t vocab_size, int64_t rows_of_logits) {
    ModelConfig config = deep_config(DType::bf16);
    config.vocab_size = vocab_size;
    ActorOptions options = actor_options(GetParam());
    options.log_probs_chunk_size = rows_of_logits;
    ActorRig rig(config, options);
    EXPECT_EQ(rig.actor.head_extent().chunk, rows_of_logits);
    rig.actor.onload();
    rig.ledger.begin_event();
    train(rig);
    return rig.ledger.usage(Place::device).at_event_peak.at("actor.activations");
  };
  const int64_t little = take(258, 1);  // of logits
  EXPECT_EQ(take(2312, 1), little);
  if (test::on_cuda()) return;                     // whose pages are larger than all of this
  const int64_t logits = 48 * 2312 * (4 + 4 * 2);  // f32, and gradients of a run of four chunks
  const int64_t much = take(2312, 48);
  EXPECT_GT(much, little);
  EXPECT_LT(much, little + logits);  // a part of which lies in what blocks have anyway
}

TEST_P(ActorMemory, KeptActivationsAreInTheRehearsalAndLeaveWithTheRest) {
  int64_t before = 0;  // the peak with one block fewer
  for (int64_t recomputed = rig_.layout.layers(); recomputed >= 0; --recomputed) {
    ActorOptions options = actor_options(GetParam());
    options.recompute_num_layers = recomputed;
    ActorRig rig(deep_config(DType::bf16), options);
    rig.actor.onload();
    const Tags onloaded = rig.device_tags();
    rig.actor.rehearse_train();
    const int64_t rehearsed = rig.ledger.usage(Place::device).peak;
    const int64_t host = rig.ledger.usage(Place::host).peak;
    rig.actor.clear_memory();
    EXPECT_FALSE(train(rig).skipped);
    EXPECT_EQ(rig.ledger.usage(Place::device).peak, rehearsed);
    EXPECT_EQ(rig.ledger.usage(Place::host).peak, host) << "activations stay on the device";
    rig.actor.clear_memory();
    EXPECT_EQ(rig.device_tags(), onloaded);
    if (!test::on_cuda()) {  // whose pages are larger than a block
      EXPECT_GT(rehearsed, before);
    }
    before = rehearsed;
  }
}

TEST_P(ActorMemory, ABudgetThatIsTooSmallIsRefusedAndNothingIsLost) {
  const ModelConfig config = deep_config(DType::f32);
  const ParamLayout layout(config);
  const auto device = test::make_test_device();
  Ledger measure;
  {
    ActorModel actor(actor_options(GetParam()), config, layout, {*device, measure});
    actor.load_weights([](const Tensor&) {});
    actor.onload();
    actor.rehearse_train();
  }
  Ledger ledger({.device_bytes = measure.usage(Place::device).peak - 1});
  ActorModel actor(actor_options(GetParam()), config, layout, {*device, ledger});
  actor.load_weights([](const Tensor&) {});
  try {
    actor.onload();
    actor.rehearse_train();
    FAIL() << "a byte too little was enough";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::budget);
    EXPECT_NE(std::string(error.what()).find("actor."), std::string::npos) << error.what();
  }
  actor.offload();
  EXPECT_EQ(ledger.usage(Place::device).total > 0, resident());
}

INSTANTIATE_TEST_SUITE_P(All, ActorMemory, testing::ValuesIn(kPlacements),
                         [](const auto& info) { return test::name_of(info.param); });

TEST(ActorMemoryOfPlacements, StreamingHoldsLeast) {
  if (test::on_cuda()) GTEST_SKIP() << "this model is smaller than a GPU's pages";
  std::map<ActorPlacement, int64_t> peaks;
  for (const ActorPlacement placement : kPlacements) {
    ActorRig rig(deep_config(DType::f32), actor_options(placement));
    rig.actor.onload();
    train(rig);
    peaks[placement] = rig.ledger.usage(Place::device).peak;
  }
  EXPECT_LT(peaks[ActorPlacement::streamed], peaks[ActorPlacement::loaded]);
  EXPECT_LT(peaks[ActorPlacement::streamed], peaks[ActorPlacement::resident]);
}

}  // namespace
}  // namespace miles
