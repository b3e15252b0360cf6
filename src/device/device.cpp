#include "device/device.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace miles {

namespace {

/// What a control group allows, bytes; INT64_MAX when the file is absent or says "max".
int64_t group_limit(const char* path) {
  int64_t bytes = 0;
  return std::ifstream(path) >> bytes && bytes > 0 ? bytes : INT64_MAX;
}

}  // namespace

int64_t host_capacity_bytes() {
  const int64_t physical =
      static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  // A container may have less than its machine: version 2 of control groups, and version 1.
  return std::min({physical, group_limit("/sys/fs/cgroup/memory.max"),
                   group_limit("/sys/fs/cgroup/memory/memory.limit_in_bytes")});
}

std::unique_ptr<Graph> Stream::capture(const std::function<void()>&) {
  return nullptr;
}

}  // namespace miles
