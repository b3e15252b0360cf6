#include "colocate/handoff.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "observe/memory_timeline.h"
#include "tests/colocate/colocate_rig.h"

namespace miles {
namespace {

using test::colocated_actor;
using test::ColocateRig;
using test::deep_config;
using test::Sharing;
using test::sharings;

using Names = std::vector<std::string>;

ColocateRig::Setup setup_of(const Sharing& sharing) {
  return {.actor = colocated_actor(sharing.placement), .handoff = sharing.handoff};
}

Sharing sharing_named(const std::string& name) {
  for (const Sharing& sharing : sharings())
    if (sharing.name == name) return sharing;
  ADD_FAILURE() << name;
  return {};
}

/// The events of the start, of a turn's way to the trainer, and of its way back.
struct Order {
  Names start, after_generate, after_train;
};

Order order_of(const std::string& name) {
  ColocateRig rig(setup_of(sharing_named(name)));
  rig.load();
  rig.events.clear();
  const auto since = [&] {
    const Names names = rig.event_names();
    rig.events.clear();
    return names;
  };
  Order order;
  rig.handoff.start();
  order.start = since();
  const auto samples = rig.generate();
  rig.events.clear();
  rig.handoff.after_generate();
  order.after_generate = since();
  rig.train(samples);
  rig.events.clear();
  rig.handoff.after_train();
  order.after_train = since();
  return order;
}

TEST(Handoff, WithThePeakOnTheGpuTheNextSideComesBeforeTheOtherLeaves) {
  const Order order = order_of("gpu_streamed");
  EXPECT_EQ(order.start,
            (Names{"rollout.onload_weights", "actor.update_weights", "rollout.onload_kv"}));
  EXPECT_EQ(order.after_generate,
            (Names{"rollout.offload_kv", "actor.onload", "rollout.offload_weights"}));
  EXPECT_EQ(order.after_train,
            (Names{"actor.clear_memory", "rollout.onload_weights", "actor.offload",
                   "actor.update_weights", "rollout.onload_kv"}));
}

TEST(Handoff, WithThePeakOnTheCpuEachSideLeavesBeforeTheOtherComes) {
  const Order order = order_of("cpu_loaded");
  EXPECT_EQ(order.start,
            (Names{"rollout.onload_weights", "actor.update_weights", "rollout.onload_kv"}));
  EXPECT_EQ(order.after_generate,
            (Names{"rollout.offload_kv", "rollout.offload_weights", "actor.onload"}));
  EXPECT_EQ(order.after_train, (Names{"actor.offload", "rollout.onload_weights",
                                      "actor.update_weights", "rollout.onload_kv"}));
}

TEST(Handoff, WithThePeakOnTheCpuTheDeviceNeverHoldsBothSides) {
  for (const char* const name : {"cpu_loaded", "cpu_streamed", "gpu_loaded"}) {
    ColocateRig rig(setup_of(sharing_named(name)));
    rig.load();
    rig.handoff.start();
    for (int turn = 0; turn < 2; ++turn) rig.turn();
    int both = 0;  // events in which there was something of each
    for (const HandoffEvent& event : rig.events) {
      const auto holds = [&](std::string_view side) {
        return std::ranges::any_of(event.device.at_event_peak,
                                   [&](const auto& tag) { return tag.first.starts_with(side); });
      };
      both += holds("actor.") && holds("rollout.") ? 1 : 0;
    }
    EXPECT_EQ(both > 0, std::string_view(name) == "gpu_loaded") << name;
  }
}

TEST(Handoff, WithoutOffloadNothingMoves) {
  const Order order = order_of("no_offload");
  EXPECT_EQ(order.start, (Names{"rollout.onload_weights", "actor.update_weights",
                                "rollout.onload_kv", "actor.onload"}));
  EXPECT_EQ(order.after_generate, Names{});
  EXPECT_EQ(order.after_train, (Names{"actor.clear_memory", "actor.update_weights"}));
}

/// What each event of a turn's way back copied, in both directions together.
std::map<std::string, int64_t> copied_after_train(const std::string& name, int64_t& weights) {
  ColocateRig rig(setup_of(sharing_named(name)));
  rig.load();
  rig.handoff.start();
  const auto samples = rig.generate();
  rig.handoff.after_generate();
  rig.train(samples);
  rig.events.clear();
  rig.handoff.after_train();
  weights = rig.layout.elements() * size_of(rig.config.dtype);
  std::map<std::string, int64_t> copied;
  for (const HandoffEvent& event : rig.events)
    copied[event.name] = event.device.arrived + event.host.arrived;
  return copied;
}

TEST(Handoff, EveryEventSaysHowMuchItCopied) {
  int64_t weights = 0;
  auto copied = copied_after_train("cpu_loaded", weights);
  // Weights of two bytes, and beside each its low half and two f32 moments; a chunk of them is
  // padded to the next vector.
  EXPECT_GE(copied["actor.offload"], weights + 5 * weights);
  EXPECT_LT(copied["actor.offload"], weights + 5 * weights + 1024);
  EXPECT_EQ(copied["actor.update_weights"], weights);
  EXPECT_EQ(copied["rollout.onload_weights"], 0);
  // Streamed state is written back while training, and a resident trainer's weights are there.
  copied = copied_after_train("gpu_streamed", weights);
  EXPECT_EQ(copied["actor.update_weights"], weights);
  copied = copied_after_train("no_offload", weights);
  EXPECT_EQ(copied["actor.update_weights"], 0);
}

TEST(Handoff, EitherSideAloneMayLeave) {
  const Order train = order_of("offload_train");
  EXPECT_EQ(train.after_generate, (Names{"actor.onload"}));
  EXPECT_EQ(train.after_train, (Names{"actor.offload", "actor.update_weights"}));
  const Order rollout = order_of("offload_rollout");
  EXPECT_EQ(rollout.after_generate, (Names{"rollout.offload_kv", "rollout.offload_weights"}));
  EXPECT_EQ(rollout.after_train, (Names{"actor.clear_memory", "rollout.onload_weights",
                                        "actor.update_weights", "rollout.onload_kv"}));
}

TEST(Handoff, ThePeakOnTheGpuNeedsBothOffloads) {
  for (const bool train : {false, true}) {
    for (const bool rollout : {false, true}) {
      const HandoffOptions options{
          .offload_train = train, .offload_rollout = rollout, .peak_device = PeakDevice::gpu};
      if (train && rollout) {
        EXPECT_NO_THROW(check_handoff_options(options));
        continue;
      }
      try {
        check_handoff_options(options);
        ADD_FAILURE() << "accepted: " << train << rollout;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::flags);
        EXPECT_NE(std::string(error.what()).find("--offload-train"), std::string::npos);
      }
      ColocateRig::Setup setup = setup_of(sharing_named("cpu_loaded"));
      setup.handoff = options;
      EXPECT_THROW(ColocateRig{setup}, Error);
    }
  }
}

class EverySharing : public testing::TestWithParam<Sharing> {};

TEST_P(EverySharing, MemoryIsTheSameAfterEveryTurn) {
  ColocateRig rig(setup_of(GetParam()));
  rig.load();
  rig.handoff.start();
  const auto device = rig.ledger.usage(Place::device).by_tag;
  const auto host = rig.ledger.usage(Place::host).by_tag;
  std::vector<int64_t> peaks;
  for (int turn = 0; turn < 3; ++turn) {
    rig.events.clear();
    EXPECT_FALSE(rig.turn().skipped);
    EXPECT_EQ(rig.ledger.usage(Place::device).by_tag, device);
    EXPECT_EQ(rig.ledger.usage(Place::host).by_tag, host);
    int64_t peak = 0;
    for (const HandoffEvent& event : rig.events) peak = std::max(peak, event.device.event_peak);
    peaks.push_back(peak);
  }
  EXPECT_EQ(peaks[1], peaks[0]);
  EXPECT_EQ(peaks[2], peaks[0]);
}

TEST_P(EverySharing, BothSidesComputeWhatTheyComputeAlone) {
  const auto wide = [](ColocateRig::Setup setup) {  // what real models have a GPU run
    setup.config = test::widened(setup.config);
    return setup;
  };
  ColocateRig plain(wide(setup_of(sharing_named("no_offload"))));
  ColocateRig rig(wide(setup_of(GetParam())));
  for (ColocateRig* one : {&plain, &rig}) {
    one->load();
    one->handoff.start();
  }
  for (int turn = 0; turn < 3; ++turn) {
    const auto expected = plain.generate(), got = rig.generate();
    for (size_t s = 0; s < expected.size(); ++s) {
      EXPECT_EQ(got[s].tokens, expected[s].tokens) << "turn " << turn << ", sample " << s;
      EXPECT_EQ(got[s].old_log_probs, expected[s].old_log_probs);
    }
    plain.handoff.after_generate();
    rig.handoff.after_generate();
    const StepResult a = plain.train(expected), b = rig.train(got);
    EXPECT_EQ(a.loss.loss, b.loss.loss);
    EXPECT_EQ(a.grad_norm, b.grad_norm);
    plain.handoff.after_train();
    rig.handoff.after_train();
    EXPECT_EQ(rig.engine.weight_version(), rig.actor.weight_version());
  }
}

TEST_P(EverySharing, TheSidesThatLeaveAreGone) {
  const HandoffOptions& options = GetParam().handoff;
  ColocateRig rig(setup_of(GetParam()));
  rig.load();
  rig.handoff.start();
  const auto held = [&](const std::string& prefix) {
    for (const auto& [tag, bytes] : rig.ledger.usage(Place::device).by_tag)
      if (tag.starts_with(prefix)) return true;
    return false;
  };
  EXPECT_EQ(held("actor."), !options.offload_train);
  EXPECT_TRUE(held("rollout."));
  const auto samples = rig.generate();
  rig.handoff.after_generate();
  EXPECT_TRUE(held("actor."));
  EXPECT_EQ(held("rollout."), !options.offload_rollout);
  rig.train(samples);
  rig.handoff.after_train();
  EXPECT_EQ(held("actor."), !options.offload_train);
  EXPECT_TRUE(held("rollout."));
}

/// A handoff that was already made changes nothing when it is made again.
TEST_P(EverySharing, MayBeRepeated) {
  ColocateRig rig(setup_of(GetParam())), other(setup_of(GetParam()));
  for (ColocateRig* one : {&rig, &other}) {
    one->load();
    one->handoff.start();
  }
  rig.handoff.start();
  const auto samples = rig.generate();
  rig.handoff.after_generate();
  const auto on_device = rig.ledger.usage(Place::device).by_tag;
  rig.handoff.after_generate();
  EXPECT_EQ(rig.ledger.usage(Place::device).by_tag, on_device);
  rig.train(samples);
  rig.handoff.after_train();
  const auto after = rig.ledger.usage(Place::device).by_tag;
  rig.handoff.after_train();
  EXPECT_EQ(rig.ledger.usage(Place::device).by_tag, after);
  other.turn();
  const auto expected = other.generate(), got = rig.generate();
  for (size_t s = 0; s < expected.size(); ++s) {
    EXPECT_EQ(got[s].tokens, expected[s].tokens);
    EXPECT_EQ(got[s].old_log_probs, expected[s].old_log_probs);
  }
}

INSTANTIATE_TEST_SUITE_P(All, EverySharing, testing::ValuesIn(sharings()),
                         [](const auto& info) { return info.param.name; });

TEST(Handoff, WhatLeavesTheDeviceLeavesTheProcess) {
  if (resident_set_bytes() == 0) GTEST_SKIP() << "the system does not tell";
  // What the process holds of the device's memory, as the system or the driver tells it.
  const auto held = [] {
    return test::on_cuda() ? make_cuda_device()->foreign_bytes() : resident_set_bytes();
  };
  ColocateRig::Setup setup = setup_of(sharing_named("cpu_streamed"));
  setup.config.vocab_size = 100'000;
  setup.config.hidden_size = 256;  // 49 MiB of embedding
  setup.actor.max_tokens_per_step = 48;
  ColocateRig rig(setup);
  rig.load();
  rig.handoff.start();
  const int64_t weights = rig.ledger.usage(Place::device).by_tag.at("rollout.weights");
  ASSERT_GT(weights, int64_t{48} << 20);
  const int64_t before = held();
  rig.engine.offload_weights();
  EXPECT_LT(held(), before - weights * 9 / 10);
  rig.engine.onload_weights();
  rig.engine.update_weights(rig.actor.weights_at_rest(), rig.actor.weight_version());
  EXPECT_GT(held(), before - weights / 10);
}

/// A device of which only exchanges of memory are asked.
class ExchangedDevice : public Device {
 public:
  struct Space : AddressSpace {
    int64_t granularity() const override { std::abort(); }
    std::byte* reserve(int64_t) override { std::abort(); }
    void unreserve(std::byte*, int64_t) noexcept override {}
    void commit(std::byte*, int64_t) override { std::abort(); }
    void decommit(std::byte*, int64_t) noexcept override {}
    void begin_exchange() override { ++begun; }
    void end_exchange() noexcept override { ++ended; }
    int begun = 0, ended = 0;
  };
  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::string name() const override { return "exchanged"; }
  int64_t capacity_bytes() const override { return 1000; }
  int64_t exchange_bytes() const override { return space.begun - space.ended; }
  AddressSpace& memory() override { return space; }
  AddressSpace& host_memory() override { std::abort(); }
  std::unique_ptr<Stream> make_stream(StreamUse) override { std::abort(); }

  Space space;
};

TEST(Handoff, MemoryIsExchangedWhileSidesChangeAndNotBeyond) {
  ColocateRig rig(setup_of(sharing_named("gpu_streamed")));
  rig.load();
  ExchangedDevice device;
  std::map<std::string, int64_t> open;  // at the end of an event
  std::string fails;
  Handoff handoff({.offload_train = true, .offload_rollout = true, .peak_device = PeakDevice::gpu},
                  rig.actor, &rig.engine, {device, rig.ledger}, [&](const HandoffEvent& event) {
                    open[event.name] = event.device_exchange;
                    if (event.name == fails) fail(ErrorCode::device, "no more");
                  });
  handoff.start();
  handoff.during("rollout.generate", [] {});
  handoff.after_generate();
  handoff.during("actor.train", [] {});
  handoff.after_train();
  EXPECT_EQ(open["rollout.generate"], 0);
  EXPECT_EQ(open["actor.onload"], 1);
  EXPECT_EQ(open["rollout.offload_weights"], 1);
  EXPECT_EQ(open["actor.train"], 0);
  EXPECT_EQ(open["actor.offload"], 1);
  EXPECT_EQ(open["rollout.onload_kv"], 1);
  EXPECT_EQ(device.space.begun, 2);
  EXPECT_EQ(device.space.ended, 2);
  fails = "actor.onload";
  EXPECT_THROW(handoff.after_generate(), Error);
  EXPECT_EQ(device.space.begun, 3);
  EXPECT_EQ(device.space.ended, 3);
}

/// A CPU of which somebody else holds a part.
class SharedDevice : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::string name() const override { return "shared"; }
  int64_t capacity_bytes() const override { return 1000; }
  int64_t foreign_bytes() const override { return ++foreign_; }
  AddressSpace& memory() override { std::abort(); }
  AddressSpace& host_memory() override { std::abort(); }
  std::unique_ptr<Stream> make_stream(StreamUse) override { std::abort(); }

 private:
  mutable int64_t foreign_ = 40;  // bytes
};

TEST(Handoff, EveryEventSaysWhatTheDeviceHoldsBesideTheLedger) {
  ColocateRig rig(setup_of(sharing_named("cpu_streamed")));
  SharedDevice device;
  std::vector<int64_t> foreign;
  Handoff handoff({}, rig.actor, &rig.engine, {device, rig.ledger},
                  [&](const HandoffEvent& event) { foreign.push_back(event.device_foreign); });
  handoff.during("one", [] {});
  handoff.during("two", [] {});
  EXPECT_EQ(foreign, (std::vector<int64_t>{41, 42}));
}

/// A CPU whose compute streams flip a bit in the copies that are large.
class FaultyDevice : public Device {
 public:
  explicit FaultyDevice(int64_t damage_from_bytes)
      : damage_from_(damage_from_bytes), sound_(make_cpu_device()) {}
  DeviceKind kind() const override { return sound_->kind(); }
  std::string name() const override { return "faulty " + sound_->name(); }
  int64_t capacity_bytes() const override { return sound_->capacity_bytes(); }
  AddressSpace& memory() override { return sound_->memory(); }
  AddressSpace& host_memory() override { return sound_->host_memory(); }
  std::unique_ptr<Stream> make_stream(StreamUse use) override {
    return std::make_unique<FaultyStream>(*this, sound_->make_stream(use));
  }

  int64_t offset = 0;  // bytes into the copy: where the bit is

 private:
  class FaultyStream : public Stream {
   public:
    FaultyStream(const FaultyDevice& device, std::unique_ptr<Stream> sound)
        : device_(device), sound_(std::move(sound)) {}
    void copy(void* to, const void* from, int64_t bytes) override {
      sound_->copy(to, from, bytes);
      if (bytes < device_.damage_from_) return;
      sound_->synchronize();
      static_cast<std::byte*>(to)[device_.offset] ^= std::byte{1};
    }
    void fill_zero(void* to, int64_t bytes) override { sound_->fill_zero(to, bytes); }
    Event record() override { return sound_->record(); }
    void wait(const Event& event) override { sound_->wait(event); }
    void synchronize() override { sound_->synchronize(); }

   private:
    const FaultyDevice& device_;
    std::unique_ptr<Stream> sound_;
  };

  int64_t damage_from_;
  std::unique_ptr<Device> sound_;
};

TEST(CheckWeightUpdateEqual, PassesWhenTheCopyIsSound) {
  ColocateRig::Setup setup = setup_of(sharing_named("gpu_streamed"));
  setup.handoff.check_weight_update_equal = true;
  ColocateRig rig(setup);
  rig.load();
  rig.handoff.start();
  EXPECT_FALSE(rig.turn().skipped);
  EXPECT_FALSE(rig.generate().empty());
}

TEST(CheckWeightUpdateEqual, NamesTheTensorThatABitIsWrongIn) {
  const ModelConfig config = deep_config(DType::bf16);
  const ParamLayout layout(config);
  const ParamSpec& param =
      layout.params()[static_cast<size_t>(*layout.find("model.layers.2.mlp.down_proj.weight"))];
  FaultyDevice device(layout.elements() * 2);
  device.offset = (param.offset + 5) * 2;
  ColocateRig::Setup setup = setup_of(sharing_named("cpu_loaded"));
  setup.engine_device = &device;
  {
    ColocateRig unchecked(setup);
    unchecked.load();
    EXPECT_NO_THROW(unchecked.handoff.start());
  }
  setup.handoff.check_weight_update_equal = true;
  ColocateRig rig(setup);
  rig.load();
  try {
    rig.handoff.start();
    FAIL() << "a wrong bit went unseen";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::internal);
    EXPECT_NE(std::string(error.what()).find("in 1 tensors: " + param.name), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace miles
