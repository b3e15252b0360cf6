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
  ++runs_;
  const auto found = shapes_.find(shape);
  if (found == shapes_.end()) {
    work();  // what is decided once (algorithms, attributes of kernels) is decided now
    // Graphs take memory of the driver's, which no budget sees: a bounded number of them.
    if (shapes_.size() >= kMostShapes)
      shapes_.erase(std::ranges::min_element(
          shapes_, {}, [](const auto& entry) { return entry.second.last_run; }));
    shapes_[shape] = {.graph = nullptr, .last_run = runs_};
    return;
  }
  Entry& entry = found->second;
  entry.last_run = runs_;
  if (!entry.graph) entry.graph = stream.capture(work);
  entry.graph->launch();
}

}  // namespace miles
