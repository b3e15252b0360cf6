// The charts of a run's report: which numbers go into which picture.
#pragma once

#include <string>

#include "observe/run_record.h"

namespace miles {

/// Reward, response length, step time by part and gradient norm over rollouts; HTML figures. A
/// chart of metrics that the run does not have is left out. Beyond kChartPoints rollouts a point
/// stands for several.
std::string metric_charts(const RunRecord& run);

/// Memory of the device and of the host over time by tag, under their budgets; of the whole run
/// and, when that is too much to see a single handoff, of the last rollouts. HTML figures, nothing
/// without events.
std::string memory_charts(const RunRecord& run);

}  // namespace miles
