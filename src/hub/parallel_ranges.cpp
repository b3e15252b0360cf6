#include "hub/parallel_ranges.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "base/error.h"

namespace miles {

void parallel_ranges(int64_t count, int64_t grain,
                     const std::function<void(int64_t first, int64_t last)>& body) {
  MILES_CHECK(count >= 0 && grain > 0, "{} elements in grains of {}", count, grain);
  // Memory is the limit of what runs here: more threads than this gain nothing.
  constexpr int64_t kMostThreads = 16;
  const int64_t grains = (count + grain - 1) / grain;
  const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  const int64_t threads = std::clamp<int64_t>(grains, 1, std::min(cores, kMostThreads));
  const auto cut = [&](int64_t i) { return std::min(count, grains * i / threads * grain); };

  std::vector<std::jthread> others;  // joined at the end of the scope
  for (int64_t i = 1; i < threads; ++i) others.emplace_back(body, cut(i), cut(i + 1));
  if (count > 0) body(0, cut(1));
}

}  // namespace miles
