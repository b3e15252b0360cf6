#include "colocate/plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/units.h"

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
  plan.streams = input.actor.placement == ActorPlacement::streamed;
  plan.recomputed_blocks = std::min(plan.blocks, input.actor.recompute_num_layers);
  const auto device = make_dry_device(input.device);
  Ledger ledger;
  const Memory memory{*device, ledger};
  ActorModel actor(input.actor, input.config, input.layout, memory);
  plan.head_surplus = actor.head_surplus();
  Engine engine(input.engine, input.config, input.layout, memory, nullptr);
  // What a comparison reads would have to be there; what it takes is the engine's own business.
  HandoffOptions options = input.handoff;
  options.check_weight_update_equal = false;
  Handoff handoff(options, actor, engine, memory,
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

namespace {

/// What can be done about what is held under a tag: weights and optimizer state are the model's,
/// and nothing can.
struct Remedy {
  const char* tag;
  std::string text;
  bool costs_time_alone = false;  // comes first, however little is under the tag
};

std::vector<Remedy> remedies_in(Place place, const MemoryPlan& plan) {
  std::vector<Remedy> all;
  if (place == Place::device) {
    if (plan.recomputed_blocks < plan.blocks)
      all.push_back(
          {"actor.activations",
           fmt::format("raise --recompute-num-layers (it is {}, and {} blocks of {} keep "
                       "their activations)",
                       plan.recomputed_blocks, plan.blocks - plan.recomputed_blocks, plan.blocks),
           true});
    // Where logits take more than blocks do, a smaller block does not help.
    if (plan.head_surplus > plan.device_peak / 20)
      all.push_back({"actor.activations",
                     fmt::format("set a smaller --log-probs-chunk-size (logits take {} beyond "
                                 "what blocks take)",
                                 format_bytes(plan.head_surplus))});
    all.push_back({"actor.activations", plan.streams
                                            ? "lower --max-tokens-per-gpu"
                                            : "lower --max-tokens-per-gpu, --global-batch-size or "
                                              "--rollout-max-response-len"});
    all.push_back({"rollout.kv_cache", "lower --max-total-tokens"});
    all.push_back({"rollout.workspace", "lower --chunked-prefill-size or --max-running-requests"});
  } else {
    all.push_back(
        {"store.grads",
         "raise --gpu-memory-budget (gradients that stay on the device need no host memory)"});
    all.push_back({"store.activations", "lower --global-batch-size or --rollout-max-response-len"});
  }
  return all;
}

const PlaceUsage& usage(Place place, const HandoffEvent& event) {
  return place == Place::device ? event.device : event.host;
}

/// The most that any event holds beside what is under these tags.
int64_t most_without(const std::set<std::string>& tags, Place place, const MemoryPlan& plan) {
  int64_t most = 0;
  for (const HandoffEvent& event : plan.events) {
    int64_t rest = usage(place, event).event_peak;
    for (const auto& [tag, bytes] : usage(place, event).at_event_peak)
      if (tags.contains(tag)) rest -= bytes;
    most = std::max(most, rest);
  }
  return most;
}

/// Those about what the peak holds, the largest first: of what takes a twentieth, or of the largest
/// where nothing does.
std::vector<Remedy> of_the_peak(Place place, const MemoryPlan& plan) {
  const bool device = place == Place::device;
  const TagBytes& tags = device ? plan.device_at_peak : plan.host_at_peak;
  const int64_t peak = device ? plan.device_peak : plan.host_peak;
  const auto held = [&](const Remedy& remedy) {
    const auto found = tags.find(remedy.tag);
    return found == tags.end() ? 0 : found->second;
  };
  std::vector<Remedy> all = remedies_in(place, plan);
  int64_t largest = 0;
  for (const Remedy& remedy : all) largest = std::max(largest, held(remedy));
  std::erase_if(all, [&](const Remedy& remedy) {
    const bool little = held(remedy) < peak / 20 && held(remedy) < largest;
    return held(remedy) == 0 || (little && !remedy.costs_time_alone);
  });
  std::ranges::stable_sort(all, std::greater{}, [&](const Remedy& remedy) {
    return std::pair(remedy.costs_time_alone, held(remedy));
  });
  return all;
}

std::string joined(const std::vector<Remedy>& all, const char* between) {
  std::vector<std::string> texts;
  for (const Remedy& remedy : all) texts.push_back(remedy.text);
  return fmt::format("{}", fmt::join(texts, between));
}

void check_place(Place place, const MemoryPlan& plan, int64_t budget) {
  const bool device = place == Place::device;
  const int64_t need = device ? plan.device_peak : plan.host_peak;
  if (need <= budget) return;
  fail(ErrorCode::budget,
       "does not fit: the run needs {} ({} bytes) of {} memory, the budget is {} ({} bytes); "
       "largest: {}. Raise {} to {}, or {}",
       format_bytes(need), need, name_of(place), format_bytes(budget), budget,
       largest_tags(device ? plan.device_at_peak : plan.host_at_peak),
       device ? "--gpu-memory-budget" : "--host-memory-budget", need,
       remedies(place, plan, budget));
}

}  // namespace

std::string remedies(Place place, const MemoryPlan& plan, int64_t room) {
  const bool more_streams = place == Place::device && plan.trains && !plan.streams;
  const char* const stream =
      "pass --colocate --colocate-memory-peak-device gpu, which keeps least on the device";
  std::set<std::string> tags;
  for (const Remedy& remedy : remedies_in(place, plan)) tags.insert(remedy.tag);
  const int64_t least = most_without(tags, place, plan);
  if (least > room)
    return more_streams
               ? stream
               : fmt::format("take a smaller model: {} of the need, and more, no flag lowers",
                             format_bytes(least));
  std::vector<Remedy> all = of_the_peak(place, plan), enough = all;
  std::erase_if(
      enough, [&](const Remedy& remedy) { return most_without({remedy.tag}, place, plan) > room; });
  std::string text = joined(enough.empty() ? all : enough, enough.empty() ? ", and " : ", or ");
  if (more_streams) text += fmt::format(", or {}", stream);
  return text;
}

std::string remedies(const MemoryPlan& plan) {
  std::vector<Remedy> all = of_the_peak(Place::device, plan);
  const std::vector<Remedy> host = of_the_peak(Place::host, plan);
  for (const Remedy& remedy : host)  // a budget is no way out where both are one memory
    if (remedy.tag != std::string_view("store.grads")) all.push_back(remedy);
  return all.empty() ? "take a smaller model" : joined(all, ", or ");
}

void check_fits(const MemoryPlan& plan, const MemoryBudget& budget) {
  check_place(Place::device, plan, budget.device_bytes);
  check_place(Place::host, plan, budget.host_bytes);
}

}  // namespace miles
