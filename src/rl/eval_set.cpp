#include "rl/eval_set.h"

#include <map>

#include "base/error.h"
#include "base/units.h"
#include "observe/eval_metrics.h"

namespace miles {

namespace {

/// Refuses names of which a metric would be taken for another's.
void check_eval_names(const std::vector<std::string>& pairs) {
  std::map<std::string, std::string> owners;  // metric → name
  for (size_t i = 0; i < pairs.size(); i += 2)
    for (const std::string& metric :
         {eval_reward_metric(pairs[i]), eval_truncated_metric(pairs[i])}) {
      const auto [owner, is_new] = owners.emplace(metric, pairs[i]);
      if (is_new) continue;
      if (owner->second == pairs[i])
        fail(ErrorCode::flags,
             "--eval-prompt-data: the name {} is given twice: metrics are told apart by it",
             pairs[i]);
      fail(ErrorCode::flags,
           "--eval-prompt-data: the names {} and {} both have a metric {}; rename one",
           owner->second, pairs[i], metric);
    }
}

}  // namespace

std::vector<EvalSet> load_eval_sets(const TrainConfig& config) {
  const auto& pairs = config.eval.prompt_data;
  if (pairs.size() % 2 != 0)
    fail(ErrorCode::flags, "--eval-prompt-data takes pairs NAME PATH, but got {}",
         format_count(std::ssize(pairs), "word"));
  check_eval_names(pairs);
  std::vector<EvalSet> sets;
  for (size_t i = 0; i < pairs.size(); i += 2) {
    DataOptions options = config.data;
    options.path = pairs[i + 1];
    options.shuffle = false;
    sets.push_back({pairs[i], DataSource::load(options)});
  }
  return sets;
}

}  // namespace miles
