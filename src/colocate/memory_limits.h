// Whether a plan fits: into what may be used, and into what is there.
#pragma once

#include <optional>
#include <string>

#include "colocate/plan.h"

namespace miles {

/// What a plan lacks.
struct Shortage {
  Place place = Place::device;
  int64_t bytes = 0;      // that are lacking
  std::string text = {};  // "the run needs 40.0 GiB (… bytes) of device memory, the budget is …"
  std::string largest = {};  // tags of the need; empty where it is not of one place
};

/// Device memory that is left to what driver and libraries take only when it is used: cuBLASLt's
/// kernels and ours, and graphs. Bytes.
int64_t driver_growth(const Device& device);

/// What is there for the device's side of a plan whose host's side takes `host_peak`, bytes: what
/// nobody else holds, less driver_growth(); and on the CPU, where both sides are the machine's one
/// memory, less the host's.
int64_t device_room(const Device& device, int64_t host_peak);

/// What the plan lacks: first of what is there, against which no budget helps, then of the device's
/// budget, then of the host's. None: it fits.
std::optional<Shortage> shortage(const MemoryPlan& plan, const MemoryBudget& budget,
                                 const Device& device);

/// "does not fit: the run needs …; largest: …", for a refusal.
std::string does_not_fit(const Shortage& lack);

}  // namespace miles
