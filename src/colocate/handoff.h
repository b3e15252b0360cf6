// The handoff: trainer and engine take turns on one device. What happens between their turns, and
// in which order, is here and nowhere else:
//
//   moment          --colocate-memory-peak-device gpu       … cpu
//   after generate  rollout.offload_kv                      rollout.offload_kv
//                   actor.onload                            rollout.offload_weights
//                   rollout.offload_weights                 actor.onload
//   train           actor.train                             actor.train
//   after train     actor.clear_memory                      actor.offload
//                   rollout.onload_weights                  rollout.onload_weights
//                   actor.offload
//   then            actor.update_weights                    the same
//                   rollout.onload_kv
//
// With `cpu` the device never holds both sides. With `gpu` the next side comes before the other
// leaves, so that host copies never coexist; the trainer then streams, which keeps the overlap
// small, but for what the budget lets stay.
#pragma once

#include <functional>
#include <string>

#include "actor/actor_model.h"
#include "memory/region.h"
#include "rollout/engine.h"

namespace miles {

/// Where the two sides overlap at a handoff.
enum class PeakDevice { cpu, gpu };

struct HandoffOptions {
  bool offload_train = false;    // the trainer leaves the device while the engine has its turn
  bool offload_rollout = false;  // the engine leaves while the trainer has its turn
  PeakDevice peak_device = PeakDevice::cpu;
  bool check_weight_update_equal =
      false;  // poison the engine's weights, update, compare every tensor
};

/// Throws Error{flags}: gpu without both offloads.
void check_handoff_options(const HandoffOptions& options);

/// One step of the handoff, when it has ended.
struct HandoffEvent {
  std::string name;    // "actor.onload"
  double seconds = 0;  // how long it took
  PlaceUsage device;   // peaks: since the previous event ended
  PlaceUsage host;
  int64_t device_foreign = 0;   // bytes of the device in use that never were the ledger's
  int64_t device_exchange = 0;  // bytes that one side has given up and no other has taken yet
};

class Handoff {
 public:
  using Observer = std::function<void(const HandoffEvent&)>;

  /// `actor`, `engine` and `memory` outlive it. Without engine (null) nothing is generated, and the
  /// trainer stays once it has come. The observer sees every event.
  Handoff(const HandoffOptions& options, ActorModel& actor, Engine* engine, Memory memory,
          Observer observer);

  /// Both sides' first appearance: the engine gets the first weights.
  void start();
  void after_generate();
  void after_train();
  /// Runs `work` as an event of its own ("rollout.generate", "actor.train").
  void during(const std::string& name, const std::function<void()>& work);

 private:
  void give_engine_weights();
  void update_weights();

  HandoffOptions options_;
  ActorModel& actor_;
  Engine* engine_;  // not owned; may be null
  Memory memory_;
  Observer observer_;
};

}  // namespace miles
