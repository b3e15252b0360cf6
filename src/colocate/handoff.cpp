#include "colocate/handoff.h"

#include <fmt/ranges.h>

#include "base/clock.h"
#include "base/error.h"

namespace miles {
namespace {

/// While it lives, device memory goes from one side to the other and not by way of the system.
class Exchange {
 public:
  explicit Exchange(AddressSpace& memory) : memory_(memory) { memory_.begin_exchange(); }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  ~Exchange() { memory_.end_exchange(); }

 private:
  AddressSpace& memory_;
};

}  // namespace

void check_handoff_options(const HandoffOptions& options) {
  if (options.peak_device == PeakDevice::gpu && !(options.offload_train && options.offload_rollout))
    fail(ErrorCode::flags,
         "--colocate-memory-peak-device gpu needs both sides to leave the device: pass --colocate, "
         "or "
         "--offload-train and --offload-rollout (given: {}, {})",
         options.offload_train ? "--offload-train" : "no --offload-train",
         options.offload_rollout ? "--offload-rollout" : "no --offload-rollout");
}

Handoff::Handoff(const HandoffOptions& options, ActorModel& actor, Engine* engine, Memory memory,
                 Observer observer)
    : options_(options),
      actor_(actor),
      engine_(engine),
      memory_(memory),
      observer_(std::move(observer)) {
  check_handoff_options(options);
}

void Handoff::during(const std::string& name, const std::function<void()>& work) {
  const Stopwatch watch;
  work();
  const double seconds = watch.seconds();
  const Ledger& ledger = memory_.ledger;
  if (observer_)
    observer_({name, seconds, ledger.usage(Place::device), ledger.usage(Place::host),
               memory_.device.foreign_bytes(), memory_.device.exchange_bytes()});
  memory_.ledger.begin_event();
}

void Handoff::start() {
  give_engine_weights();
  // With no offload the trainer, too, is there from the start.
  if (!options_.offload_train) during("actor.onload", [this] { actor_.onload(); });
}

void Handoff::after_generate() {
  const Exchange exchange(memory_.device.memory());
  const auto engine_leaves = [this] {
    if (engine_ != nullptr && options_.offload_rollout)
      during("rollout.offload_weights", [this] { engine_->offload_weights(); });
  };
  const auto trainer_comes = [this] {
    if (options_.offload_train) during("actor.onload", [this] { actor_.onload(); });
  };
  if (engine_ != nullptr && options_.offload_rollout)
    during("rollout.offload_kv", [this] { engine_->offload_kv(); });
  if (options_.peak_device == PeakDevice::gpu) {
    trainer_comes();
    engine_leaves();
  } else {
    engine_leaves();
    trainer_comes();
  }
}

void Handoff::after_train() {
  if (engine_ == nullptr) {
    during("actor.clear_memory", [this] { actor_.clear_memory(); });
    return;
  }
  const Exchange exchange(memory_.device.memory());
  if (options_.peak_device == PeakDevice::gpu) {
    during("actor.clear_memory", [this] { actor_.clear_memory(); });
    during("rollout.onload_weights", [this] { engine_->onload_weights(); });
    during("actor.offload", [this] { actor_.offload(); });
  } else if (options_.offload_train) {
    during("actor.offload", [this] { actor_.offload(); });
  } else {
    during("actor.clear_memory", [this] { actor_.clear_memory(); });
  }
  give_engine_weights();
}

void Handoff::give_engine_weights() {
  if (engine_ == nullptr) return;
  if (!engine_->weights_resident())
    during("rollout.onload_weights", [this] { engine_->onload_weights(); });
  during("actor.update_weights", [this] { update_weights(); });
  if (!engine_->kv_resident()) during("rollout.onload_kv", [this] { engine_->onload_kv(); });
}

void Handoff::update_weights() {
  const Tensor weights = actor_.weights_at_rest();
  if (options_.check_weight_update_equal) engine_->poison_weights();
  engine_->update_weights(weights, actor_.weight_version());
  if (actor_.rests_at() == Place::host) memory_.ledger.copied(Place::device, weights.bytes());
  if (!options_.check_weight_update_equal) return;
  const std::vector<std::string> different = engine_->compare_weights(weights);
  if (!different.empty())
    fail(ErrorCode::internal,
         "the engine's weights differ from the trainer's after an update, in {} tensors: {}",
         different.size(), fmt::join(different, ", "));
}

}  // namespace miles
