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

using FlagsByTag = std::vector<std::pair<const char*, const char*>>;

/// What lowers what is held under a tag. Weights and optimizer state are the model's.
FlagsByTag lowering_flags(const MemoryPlan& plan) {
  return {{"rollout.kv_cache", "--max-total-tokens"},
          {"rollout.workspace", "--chunked-prefill-size or --max-running-requests"},
          {"actor.activations",
           plan.streams ? "--max-tokens-per-gpu or --log-probs-chunk-size"
                        : "--max-tokens-per-gpu, --log-probs-chunk-size, --global-batch-size or "
                          "--rollout-max-response-len"},
          {"store.activations", "--global-batch-size or --rollout-max-response-len"}};
}

/// A place's share of a plan.
struct Held {
  Held(Place place, const MemoryPlan& plan)
      : bytes(place == Place::device ? plan.device_peak : plan.host_peak),
        tags(place == Place::device ? plan.device_at_peak : plan.host_at_peak) {}
  int64_t of(const char* tag) const {
    const auto found = tags.find(tag);
    return found == tags.end() ? 0 : found->second;
  }
  int64_t bytes;         // at the peak
  const TagBytes& tags;  // then
};

/// "lower --flag" for each tag that a flag lowers, the largest first: of what takes a twentieth, or
/// of the largest where nothing does.
void add_lowering(const Held& held, const MemoryPlan& plan, std::vector<std::string>& all) {
  std::vector<std::pair<int64_t, const char*>> flags;  // by the bytes that they are about
  for (const auto& [tag, flag] : lowering_flags(plan))
    if (held.of(tag) > 0) flags.emplace_back(held.of(tag), flag);
  std::ranges::sort(flags, std::greater{});
  for (const auto& [bytes, flag] : flags)
    if (bytes >= held.bytes / 20 || flag == flags.front().second)
      all.push_back(fmt::format("lower {}", flag));
}

void add_recomputing(const MemoryPlan& plan, std::vector<std::string>& all) {
  if (plan.recomputed_blocks < plan.blocks)
    all.push_back(fmt::format(
        "raise --recompute-num-layers (it is {}, and {} blocks of {} keep their activations)",
        plan.recomputed_blocks, plan.blocks - plan.recomputed_blocks, plan.blocks));
}

/// What stays at the peak when everything that flags lower is gone.
int64_t least_held(const Held& held, const MemoryPlan& plan) {
  int64_t least = held.bytes - held.of("store.grads");
  for (const auto& [tag, flag] : lowering_flags(plan)) least -= held.of(tag);
  return least;
}

std::string joined(const std::vector<std::string>& all) {
  return fmt::format("{}", fmt::join(all, ", or "));
}

void check_place(Place place, const MemoryPlan& plan, int64_t budget) {
  const Held held(place, plan);
  if (held.bytes <= budget) return;
  fail(ErrorCode::budget,
       "does not fit: the run needs {} ({} bytes) of {} memory, the budget is {} ({} bytes); "
       "largest: {}. Raise {} to {}, or {}",
       format_bytes(held.bytes), held.bytes, name_of(place), format_bytes(budget), budget,
       largest_tags(held.tags),
       place == Place::device ? "--gpu-memory-budget" : "--host-memory-budget", held.bytes,
       remedies(place, plan, budget));
}

}  // namespace

std::string remedies(Place place, const MemoryPlan& plan, int64_t room) {
  const bool device = place == Place::device;
  const Held held(place, plan);
  const int64_t least = least_held(held, plan);
  std::vector<std::string> all;
  if (least <= room) {
    if (device) add_recomputing(plan, all);
    if (held.of("store.grads") > 0)
      all.emplace_back(
          "raise --gpu-memory-budget (gradients that stay on the device need no host memory)");
    add_lowering(held, plan, all);
  }
  if (device && plan.trains && !plan.streams)
    all.emplace_back(
        "pass --colocate --colocate-memory-peak-device gpu, which keeps least on the device");
  if (all.empty())
    all.push_back(
        fmt::format("take a smaller model ({} of it no flag lowers)", format_bytes(least)));
  return joined(all);
}

std::string remedies(const MemoryPlan& plan) {
  std::vector<std::string> all;
  add_recomputing(plan, all);
  for (const Place place : {Place::device, Place::host}) add_lowering({place, plan}, plan, all);
  if (all.empty()) all.emplace_back("take a smaller model");
  return joined(all);
}

void check_fits(const MemoryPlan& plan, const MemoryBudget& budget) {
  check_place(Place::device, plan, budget.device_bytes);
  check_place(Place::host, plan, budget.host_bytes);
}

}  // namespace miles
