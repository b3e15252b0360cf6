#include "colocate/plan.h"

#include "base/error.h"
#include "base/units.h"

namespace miles {

MemoryPlan plan_memory(const PlanInput& input) {
  MemoryPlan plan;
  const auto device = make_dry_device(input.device);
  Ledger ledger;
  const Memory memory{*device, ledger};
  ActorModel actor(input.actor, input.config, input.layout, memory);
  Engine engine(input.engine, input.config, input.layout, memory, nullptr);
  // What a comparison reads would have to be there; what it takes is the engine's own business.
  HandoffOptions options = input.handoff;
  options.check_weight_update_equal = false;
  Handoff handoff(options, actor, engine, memory, [&](const HandoffEvent& event) {
    if (event.device.event_peak > plan.device_peak) {
      plan.device_peak = event.device.event_peak;
      plan.device_at_peak = event.device;
    }
    if (event.host.event_peak > plan.host_peak) {
      plan.host_peak = event.host.event_peak;
      plan.host_at_peak = event.host;
    }
    plan.events.push_back(event);
  });
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

void check_place(Place place, int64_t need, const PlaceUsage& at_peak, int64_t budget) {
  if (need <= budget) return;
  const bool device = place == Place::device;
  fail(ErrorCode::budget,
       "does not fit: the run needs {} ({} bytes) of {} memory, the budget is {} ({} bytes); "
       "largest: "
       "{}. Raise {} to {}, or lower {}",
       format_bytes(need), need, name_of(place), format_bytes(budget), budget,
       largest_tags(at_peak), device ? "--gpu-memory-budget" : "--host-memory-budget", need,
       device ? "--max-tokens-per-gpu, --max-total-tokens or --max-running-requests; --colocate "
                "--colocate-memory-peak-device gpu keeps least on the device"
              : "--global-batch-size or --rollout-max-response-len");
}

}  // namespace

void check_fits(const MemoryPlan& plan, const MemoryBudget& budget) {
  check_place(Place::device, plan.device_peak, plan.device_at_peak, budget.device_bytes);
  check_place(Place::host, plan.host_peak, plan.host_at_peak, budget.host_bytes);
}

}  // namespace miles
