#include "rollout/step_graphs.h"

#include <algorithm>

namespace miles {

DecodeShape ladder_shape(DecodeShape wanted, DecodeShape limits) {
  int64_t step = 1, pages = 1;
  while (step * 8 <= wanted.sequences) step *= 2;
  while (pages < wanted.pages) pages *= 2;
  return {std::min(limits.sequences, (wanted.sequences + step - 1) / step * step),
          std::min(limits.pages, pages), wanted.shares};
}

void StepGraphs::run(Stream& stream, DecodeShape shape, const std::function<void()>& work) {
  const auto entry = graphs_.find(shape);
  if (entry == graphs_.end()) {
    work();  // what is decided once (algorithms, attributes of kernels) is decided now
    // Graphs take memory of the driver's, which no budget sees: a bounded number of them.
    if (graphs_.size() >= kMostGraphs) graphs_.clear();
    graphs_.emplace(shape, nullptr);
    return;
  }
  if (!entry->second) entry->second = stream.capture(work);
  entry->second->launch();
}

}  // namespace miles
