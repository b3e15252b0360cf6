// What is planned is what is taken, to the byte.
#include "colocate/plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "colocate/memory_limits.h"
#include "tests/colocate/colocate_rig.h"

namespace miles {
namespace {

using test::colocated_actor;
using test::ColocateRig;
using test::Sharing;
using test::sharings;

class Plan : public testing::TestWithParam<Sharing> {
 protected:
  Plan() {
    setup_.handoff = GetParam().handoff;
    setup_.actor = colocated_actor(GetParam().placement);
  }
  MemoryPlan plan(bool saves = false) const {
    const ParamLayout layout(setup_.config);
    const auto device = test::make_test_device();
    return plan_memory({.device = *device,
                        .config = setup_.config,
                        .layout = layout,
                        .actor = setup_.actor,
                        .engine = setup_.engine,
                        .handoff = setup_.handoff,
                        .saves = saves});
  }
  void run(int turns) {
    ColocateRig rig(setup_);
    rig.load();
    rig.handoff.start();
    for (int turn = 0; turn < turns; ++turn) EXPECT_FALSE(rig.turn().skipped);
    events_ = rig.events;
    device_peak_ = rig.ledger.usage(Place::device).peak;
    host_peak_ = rig.ledger.usage(Place::host).peak;
  }
  void expect_every_event() {
    const MemoryPlan planned = plan();
    run(1);
    EXPECT_EQ(planned.device_peak, device_peak_);
    EXPECT_EQ(planned.host_peak, host_peak_);
    ASSERT_EQ(planned.events.size(), events_.size());
    for (size_t i = 0; i < events_.size(); ++i) {
      const HandoffEvent &expected = planned.events[i], &got = events_[i];
      SCOPED_TRACE(expected.name);
      EXPECT_EQ(got.name, expected.name);
      EXPECT_EQ(got.device.by_tag, expected.device.by_tag);
      EXPECT_EQ(got.host.by_tag, expected.host.by_tag);
      EXPECT_EQ(got.device.event_peak, expected.device.event_peak);
      EXPECT_EQ(got.host.event_peak, expected.host.event_peak);
    }
  }

  ColocateRig::Setup setup_;
  std::vector<HandoffEvent> events_;
  int64_t device_peak_ = 0, host_peak_ = 0;
};

TEST_P(Plan, PeaksAreThoseOfARunToTheByte) {
  setup_.steps = 2;
  for (const auto& [layers, states] : {std::pair{0, 0}, {2, 3}}) {
    setup_.actor.resident_layers = layers;
    setup_.actor.resident_states = states;
    const MemoryPlan planned = plan();
    run(3);  // of samples that fill none of the maxima
    EXPECT_EQ(planned.device_peak, device_peak_);
    EXPECT_EQ(planned.host_peak, host_peak_);
    EXPECT_GT(planned.device_peak, 0);
  }
}

TEST_P(Plan, EveryEventIsThatOfARun) {
  expect_every_event();
}

TEST_P(Plan, EveryEventIsThatOfARunThatKeepsActivations) {
  for (const int64_t recomputed : {3, 0}) {
    SCOPED_TRACE(recomputed);
    setup_.actor.recompute_num_layers = recomputed;
    expect_every_event();
  }
}

TEST_P(Plan, EveryEventIsThatOfARunWhoseStateStays) {
  setup_.steps = 2;
  for (const auto& [layers, states] : {std::pair{1, 0}, {2, 3}, {4, 100}}) {
    SCOPED_TRACE(layers);
    setup_.actor.resident_layers = layers;
    setup_.actor.resident_states = states;
    expect_every_event();
  }
}

TEST_P(Plan, KeepsAsMuchStateAsTheRoomAllows) {
  setup_.engine.max_total_tokens = setup_.engine.max_context_len;  // or its cache has the peak
  const ParamLayout layout(setup_.config);
  const auto device = test::make_test_device();
  PlanInput input{.device = *device,
                  .config = setup_.config,
                  .layout = layout,
                  .actor = setup_.actor,
                  .engine = setup_.engine,
                  .handoff = setup_.handoff};
  const bool streamed = setup_.actor.placement == ActorPlacement::streamed;
  const int64_t layers = streamed ? layout.layers() : 0;
  const int64_t chunks = streamed ? std::ssize(make_chunks(layout)) : 0;
  const auto peak_with = [&](int64_t resident_layers, int64_t resident_states) {
    PlanInput other = input;
    other.actor.resident_layers = resident_layers;
    other.actor.resident_states = resident_states;
    return plan_memory(other).device_peak;
  };
  std::vector<std::pair<int64_t, int64_t>> choices;  // layers and states, in the order of wishes
  for (int64_t l = 0; l <= layers; ++l) choices.emplace_back(l, 0);
  for (int64_t c = 1; c <= chunks; ++c) choices.emplace_back(layers, c);
  for (const auto& [l, c] : choices)
    for (const int64_t room : {peak_with(l, c), peak_with(l, c) - 1}) {
      SCOPED_TRACE(fmt::format("room for {} layers and {} states, {} bytes", l, c, room));
      for (const int64_t steps : {2, 1}) {
        input.num_steps_per_rollout = steps;
        keep_most_resident(input, room);
        const int64_t got_layers = input.actor.resident_layers,
                      got_states = input.actor.resident_states;
        const bool any = got_layers + got_states > 0;
        if (any) {
          EXPECT_LE(peak_with(got_layers, got_states), room);
        }
        if (got_layers < layers) {
          EXPECT_GT(peak_with(got_layers + 1, 0), room);
        }
        if (steps == 1) {
          EXPECT_EQ(got_states, 0);  // which would move as often
        } else if (got_states < chunks) {
          EXPECT_GT(peak_with(got_layers, got_states + 1), room);
        }
      }
    }
  keep_most_resident(input, INT64_MAX);
  EXPECT_EQ(input.actor.resident_layers, layers);
  if (!streamed || test::on_cuda()) return;  // whose pages are larger
  EXPECT_GT(peak_with(2, 0), peak_with(1, 0));
  EXPECT_GT(peak_with(layers, 3), peak_with(layers, 1));
  const int64_t host = plan_memory(input).host_peak;
  input.actor.resident_layers = 0;
  EXPECT_LT(host, plan_memory(input).host_peak);  // gradients that stay need no home there
}

TEST_P(Plan, CountsWhatSavingTakes) {
  const MemoryPlan planned = plan(/*saves=*/true);
  setup_.budget = {.device_bytes = planned.device_peak, .host_bytes = planned.host_peak};
  ColocateRig rig(setup_);
  rig.load();
  rig.handoff.start();
  const auto samples = rig.generate();
  rig.handoff.after_generate();
  rig.train(samples);
  const test::ScratchDir directory;
  rig.handoff.during("actor.save", [&] { rig.actor.save_state(directory.path()); });
  rig.handoff.after_train();
  EXPECT_EQ(rig.ledger.usage(Place::device).peak, planned.device_peak);
  EXPECT_EQ(rig.ledger.usage(Place::host).peak, planned.host_peak);
}

TEST_P(Plan, ABudgetOfExactlyThePlanIsEnoughAndAByteLessIsNot) {
  const MemoryPlan planned = plan();
  setup_.budget = {.device_bytes = planned.device_peak, .host_bytes = planned.host_peak};
  const auto device = make_cpu_device();  // which has more than that
  EXPECT_FALSE(shortage(planned, setup_.budget, *device));
  EXPECT_NO_THROW(run(2));

  const auto refused = [&](MemoryBudget budget, Place place) {
    const auto lack = shortage(planned, budget, *device);
    ASSERT_TRUE(lack);
    EXPECT_EQ(lack->place, place);
    EXPECT_NE(lack->text.find(name_of(place)), std::string::npos) << lack->text;
    setup_.budget = budget;
    EXPECT_THROW(run(1), Error) << "the run itself would have fitted";
  };
  refused({.device_bytes = planned.device_peak - 1}, Place::device);
  if (planned.host_peak > 0) refused({.host_bytes = planned.host_peak - 1}, Place::host);
}

TEST_P(Plan, RecomputesAsFewBlocksAsTheRoomAllows) {
  const int64_t blocks = setup_.config.num_hidden_layers;
  std::vector<int64_t> peaks;  // [blocks + 1] by recomputed blocks
  for (int64_t recomputed = 0; recomputed <= blocks; ++recomputed) {
    setup_.actor.recompute_num_layers = recomputed;
    peaks.push_back(plan().device_peak);
    EXPECT_LE(peaks.back(), peaks.front());
  }
  if (!test::on_cuda()) {  // whose pages are larger than a block
    EXPECT_GT(peaks.front(), peaks.back());
  }
  const ParamLayout layout(setup_.config);
  const auto device = test::make_test_device();
  for (const int64_t peak : peaks)
    for (const int64_t room : {peak, peak - 1}) {
      const auto fits = std::find_if(peaks.begin(), peaks.end() - 1,
                                     [&](int64_t other) { return other <= room; });
      const MemoryPlan chosen = plan_fewest_recomputed({.device = *device,
                                                        .config = setup_.config,
                                                        .layout = layout,
                                                        .actor = setup_.actor,
                                                        .engine = setup_.engine,
                                                        .handoff = setup_.handoff},
                                                       room);
      EXPECT_EQ(chosen.recomputed_blocks, fits - peaks.begin());
      EXPECT_EQ(chosen.device_peak, peaks[static_cast<size_t>(chosen.recomputed_blocks)]);
      EXPECT_EQ(chosen.blocks, blocks);
    }
}

INSTANTIATE_TEST_SUITE_P(All, Plan, testing::ValuesIn(sharings()),
                         [](const auto& info) { return info.param.name; });

TEST(PlanOfAModel, NeedsNoneOfItsMemory) {
  // 32 billion parameters: no machine that runs tests holds them.
  const ModelConfig config = find_preset("qwen3-32b").value();
  const ParamLayout layout(config);
  const auto device = test::make_test_device();
  const PlanInput input{
      .device = *device,
      .config = config,
      .layout = layout,
      .actor = {.placement = ActorPlacement::streamed,
                .max_tokens_per_gpu = 4096,
                .max_tokens_per_step = 1 << 18,
                .max_sequences_per_step = 256,
                .max_sequence_length = 2048,
                .optimizer = {}},
      .engine = {.max_total_tokens = 1 << 17, .max_context_len = 2048},
      .handoff = {.offload_train = true, .offload_rollout = true, .peak_device = PeakDevice::gpu}};
  const MemoryPlan plan = plan_memory(input);
  EXPECT_GT(plan.device_peak, layout.elements() * 2);     // the engine's weights
  const int64_t state = layout.elements() * (4 + 8 + 2);  // weight, low half, moments, gradient
  EXPECT_GT(plan.host_peak, state);
  // And nothing twice, not even for a moment.
  EXPECT_LT(plan.host_peak - plan.host_at_peak.at("store.activations"), state + state / 100);
  EXPECT_EQ(plan.events.front().name, "load");
  EXPECT_EQ(plan.recomputed_blocks, 64);

  const int64_t room = plan.device_peak + (int64_t{80} << 30);
  const MemoryPlan keeping = plan_fewest_recomputed(input, room);
  EXPECT_LT(keeping.recomputed_blocks, 64);
  EXPECT_LE(keeping.device_peak, room);
  EXPECT_EQ(keeping.host_peak, plan.host_peak);
}

TEST(PlanOfPeaks, OnTheCpuTheDeviceHoldsOneSideOnly) {
  ColocateRig::Setup setup;
  const ParamLayout layout(setup.config);
  const auto device = test::make_test_device();
  std::map<std::string, int64_t> peaks;
  for (const Sharing& sharing : sharings())
    peaks[sharing.name] = plan_memory({.device = *device,
                                       .config = setup.config,
                                       .layout = layout,
                                       .actor = colocated_actor(sharing.placement),
                                       .engine = setup.engine,
                                       .handoff = sharing.handoff})
                              .device_peak;
  EXPECT_LT(peaks["cpu_loaded"], peaks["no_offload"]);
  EXPECT_LE(peaks["cpu_streamed"], peaks["gpu_streamed"]);
  EXPECT_LE(peaks["cpu_loaded"], peaks["gpu_loaded"]);
  EXPECT_LT(peaks["cpu_streamed"], peaks["cpu_loaded"]);
}

}  // namespace
}  // namespace miles
