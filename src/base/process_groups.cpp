#include "base/process_groups.h"

#include <signal.h>

#include <mutex>
#include <set>

namespace miles {
namespace {

/// Never destroyed: a thread may still come for it when the program's statics are.
struct Groups {
  std::mutex mutex;
  std::set<pid_t> leaders;
};

Groups& groups() {
  static auto* const all = new Groups;
  return *all;
}

}  // namespace

pid_t start_process_group(const std::function<pid_t()>& start) {
  const std::lock_guard lock(groups().mutex);
  const pid_t leader = start();
  if (leader > 0) groups().leaders.insert(leader);
  return leader;
}

void forget_process_group(pid_t leader) {
  const std::lock_guard lock(groups().mutex);
  groups().leaders.erase(leader);
}

void kill_process_groups() {
  groups().mutex.lock();  // for ever
  for (const pid_t leader : groups().leaders) ::kill(-leader, SIGKILL);
}

}  // namespace miles
