#include "colocate/plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "base/units.h"

namespace miles {

MemoryPlan plan_memory(const PlanInput& input) {
  MemoryPlan plan;
  plan.blocks = input.layout.layers();
  plan.streams = input.actor.placement == ActorPlacement::streamed;
  plan.recomputed_blocks = std::min(plan.blocks, input.actor.recompute_num_layers);
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
      plan.device_at_peak = event.device.at_event_peak;
    }
    if (event.host.event_peak > plan.host_peak) {
      plan.host_peak = event.host.event_peak;
      plan.host_at_peak = event.host.at_event_peak;
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

namespace {

void check_place(Place place, const MemoryPlan& plan, int64_t budget) {
  const bool device = place == Place::device;
  const int64_t need = device ? plan.device_peak : plan.host_peak;
  if (need <= budget) return;
  fail(ErrorCode::budget,
       "does not fit: the run needs {} ({} bytes) of {} memory, the budget is {} ({} bytes); "
       "largest: {}. Raise {} to {}, or {}",
       format_bytes(need), need, name_of(place), format_bytes(budget), budget,
       largest_tags(device ? plan.device_at_peak : plan.host_at_peak),
       device ? "--gpu-memory-budget" : "--host-memory-budget", need, remedies(place, plan));
}

}  // namespace

namespace {

/// "lower --flag" for what is held under each tag of the place that a flag lowers, the largest
/// first: of what takes a twentieth, or of the largest where nothing does. Weights and optimizer
/// state are the model's, and have none.
void add_lowering(Place place, const MemoryPlan& plan, std::vector<std::string>& all) {
  const bool device = place == Place::device;
  const TagBytes& held = device ? plan.device_at_peak : plan.host_at_peak;
  const int64_t peak = device ? plan.device_peak : plan.host_peak;
  const std::pair<const char*, const char*> lowered[] = {
      {"rollout.kv_cache", "--max-total-tokens"},
      {"rollout.workspace", "--chunked-prefill-size or --max-running-requests"},
      {"actor.activations", plan.streams ? "--max-tokens-per-gpu"
                                         : "--max-tokens-per-gpu, --global-batch-size or "
                                           "--rollout-max-response-len"},
      {"store.activations", "--global-batch-size or --rollout-max-response-len"}};
  std::vector<std::pair<int64_t, const char*>> flags;  // by the bytes that they are about
  for (const auto& [tag, flag] : lowered)
    if (const auto found = held.find(tag); found != held.end())
      flags.emplace_back(found->second, flag);
  std::ranges::sort(flags, std::greater{});
  for (const auto& [bytes, flag] : flags)
    if (bytes >= peak / 20 || flag == flags.front().second)
      all.push_back(fmt::format("lower {}", flag));
}

void add_recomputing(const MemoryPlan& plan, std::vector<std::string>& all) {
  if (plan.recomputed_blocks < plan.blocks)
    all.push_back(fmt::format(
        "raise --recompute-num-layers (it is {}, and {} blocks of {} keep their activations)",
        plan.recomputed_blocks, plan.blocks - plan.recomputed_blocks, plan.blocks));
}

std::string joined(const std::vector<std::string>& all) {
  return all.empty() ? "take a smaller model" : fmt::format("{}", fmt::join(all, ", or "));
}

}  // namespace

std::string remedies(Place place, const MemoryPlan& plan) {
  const bool device = place == Place::device;
  std::vector<std::string> all;
  if (device) add_recomputing(plan, all);
  if (!device && plan.host_at_peak.contains("store.grads"))
    all.emplace_back(
        "raise --gpu-memory-budget (gradients that stay on the device need no host memory)");
  add_lowering(place, plan, all);
  if (device && plan.trains && !plan.streams)
    all.emplace_back(
        "pass --colocate --colocate-memory-peak-device gpu, which keeps least on the device");
  return joined(all);
}

std::string remedies(const MemoryPlan& plan) {
  std::vector<std::string> all;
  add_recomputing(plan, all);
  for (const Place place : {Place::device, Place::host}) add_lowering(place, plan, all);
  return joined(all);
}

void check_fits(const MemoryPlan& plan, const MemoryBudget& budget) {
  check_place(Place::device, plan, budget.device_bytes);
  check_place(Place::host, plan, budget.host_bytes);
}

}  // namespace miles
