#include "observe/eval_metrics.h"

namespace miles {

std::string eval_reward_metric(const std::string& set) {
  return "eval/" + set;
}

std::string eval_truncated_metric(const std::string& set) {
  return eval_reward_metric(set) + "-truncated_ratio";
}

}  // namespace miles
