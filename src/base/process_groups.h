// The process groups that the program has started. Their owners kill them; where a signal ends the
// program at once no owner comes to that, and a process that does not mind the end of its input
// would outlive us.
#pragma once

#include <sys/types.h>

#include <functional>

namespace miles {

/// `start` starts a group and returns its leader's id, or -1 when it could not. Returns the same.
pid_t start_process_group(const std::function<pid_t()>& start);

/// To be called before the leader is reaped: afterwards the number may be somebody else's.
void forget_process_group(pid_t leader);

/// Kills all that were started and not forgotten. Nobody can start or forget one after that: for the
/// end of the program.
void kill_process_groups();

}  // namespace miles
