#include "colocate/plan.h"

#include <algorithm>
#include <functional>
#include <optional>

namespace miles {

void MemoryPlan::add(const HandoffEvent& event) {
  if (event.device.event_peak > device_peak) {
    device_peak = event.device.event_peak;
    device_at_peak = event.device.at_event_peak;
  }
  if (event.host.event_peak > host_peak) {
    host_peak = event.host.event_peak;
    host_at_peak = event.host.at_event_peak;
  }
  events.push_back(event);
}

MemoryPlan plan_memory(const PlanInput& input) {
  MemoryPlan plan;
  plan.blocks = input.layout.layers();
  plan.recomputed_blocks = std::min(plan.blocks, input.actor.recompute_num_layers);
  const auto device = make_dry_device(input.device);
  Ledger ledger;
  const Memory memory{*device, ledger};
  ActorModel actor(input.actor, input.config, input.layout, memory);
  plan.log_probs_chunk_size = actor.head_extent().chunk;
  std::optional<Engine> engine;
  if (input.generates) engine.emplace(input.engine, input.config, input.layout, memory, nullptr);
  // What a comparison reads would have to be there; what it takes is the engine's own business.
  HandoffOptions options = input.handoff;
  options.check_weight_update_equal = false;
  Handoff handoff(options, actor, engine ? &*engine : nullptr, memory,
                  [&](const HandoffEvent& event) { plan.add(event); });
  handoff.during("load", [&] { actor.load_weights([](const Tensor&) {}); });
  handoff.start();
  handoff.during("rollout.generate", [] {});
  handoff.after_generate();
  handoff.during("actor.train", [&] { actor.rehearse_train(); });
  if (input.saves) handoff.during("actor.save", [&] { actor.rehearse_save(); });
  handoff.after_train();
  return plan;
}

namespace {

/// The largest of 0 … most for which `fits` holds, where it holds for all below; 0 need not. The
/// most itself is asked about first: it may hold less than a little less, being without a window.
int64_t most_that_fits(int64_t most, const std::function<bool(int64_t)>& fits) {
  if (fits(most)) return most;
  int64_t low = 0;
  most = std::max<int64_t>(0, most - 1);
  while (low < most) {
    const int64_t middle = most - (most - low) / 2;
    if (fits(middle))
      low = middle;
    else
      most = middle - 1;
  }
  return low;
}

}  // namespace

void keep_most_resident(PlanInput& input, int64_t device_bytes) {
  if (input.actor.placement != ActorPlacement::streamed) return;
  const auto choose = [&](int64_t& option, int64_t most) {
    option = most_that_fits(most, [&](int64_t value) {
      option = value;
      return plan_memory(input).device_peak <= device_bytes;
    });
  };
  input.actor.resident_layers = input.actor.resident_states = 0;
  choose(input.actor.resident_layers, input.layout.layers());
  if (input.num_steps_per_rollout > 1)
    choose(input.actor.resident_states, std::ssize(make_chunks(input.layout)));
}

MemoryPlan plan_fewest_recomputed(PlanInput input, int64_t device_bytes) {
  const auto plan_with = [&](int64_t recomputed) {
    input.actor.recompute_num_layers = recomputed;
    return plan_memory(input);
  };
  // The more are kept, the more is held.
  const int64_t blocks = input.layout.layers();
  MemoryPlan best = plan_with(blocks);
  most_that_fits(blocks, [&](int64_t kept) {
    MemoryPlan plan = plan_with(blocks - kept);
    const bool fits = plan.device_peak <= device_bytes;
    if (fits) best = std::move(plan);
    return fits;
  });
  return best;
}

}  // namespace miles
