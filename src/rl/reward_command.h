// Rewards from a program of the user's (--custom-rm-command), in any language, in worker processes
// that stay.
//
// A worker is `/bin/sh -c COMMAND`. Per sample it reads one line from stdin and writes one line to
// stdout (and flushes):
//   in   {"id": 7, "prompt": "2+2=", "response": "4", "label": "4", "metadata": {}}
//   out  {"id": 7, "reward": 1.0}        or  {"id": 7, "reward": null} when it has no score
// Anything else is for stderr, which is logged. When stdin ends, the worker should end.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "rl/reward.h"

namespace miles {

struct RewardCommandOptions {
  std::string command = {};     // given to /bin/sh -c
  int64_t workers = 1;          // processes side by side (--rm-workers), at least 1
  double timeout_seconds = 60;  // for one sample, a start included (--rm-timeout)
};

struct RewardRequest {
  int64_t id = 0;                // any number; the worker gives it back
  std::string prompt = {};       // text; bytes that are no UTF-8 are sent as U+FFFD
  std::string response = {};     // text, likewise
  std::string label = {};        // text, likewise; empty when there is none
  nlohmann::json metadata = {};  // the data row's own
};

/// Used by one thread at a time. Ignores SIGPIPE in the whole program, unless somebody handles it.
class RewardCommand {
 public:
  /// Starts the workers. Throws Error{flags} for options out of range, Error{device} when no
  /// process can be started.
  explicit RewardCommand(RewardCommandOptions options);

  /// Closes the workers' stdin and gives them a second to end; what is left of their process groups
  /// is killed.
  ~RewardCommand();
  RewardCommand(const RewardCommand&) = delete;
  RewardCommand& operator=(const RewardCommand&) = delete;

  /// Throws Error{data} saying how they ended when every worker has ended by itself before any was
  /// asked: the command cannot start; or what one printed to stdout, where only replies belong.
  /// Does not wait; nothing once a request was sent.
  void check_started();
  /// The same, once a command that is not there has had the time to fail.
  void await_start();

  /// Scores all requests, as many at once as there are workers; result i belongs to request i. A
  /// sample has no reward but a problem when the worker says null, ends, answers anything but the
  /// line above (a wrong id, a reward that is no finite number) or takes longer than the timeout.
  /// Except after null, that worker's process group is killed and a new worker started. A sample is
  /// tried once. The first few problems and lines of stderr are logged.
  /// Throws Interrupted after a signal (base/interrupt.h).
  /// Throws Error{data} naming the command and what it said, when every request failed, or when the
  /// command has never answered and failed max(5, 2 × workers) times (it cannot start, or hangs).
  std::vector<RewardResult> score(std::span<const RewardRequest> requests);

 private:
  class Pool;
  std::unique_ptr<Pool> pool_;
};

}  // namespace miles
