// The metrics of an evaluation set, as Miles calls them.
#pragma once

#include <string>

namespace miles {

std::string eval_reward_metric(const std::string& set);     // mean reward
std::string eval_truncated_metric(const std::string& set);  // share of responses that were cut

}  // namespace miles
