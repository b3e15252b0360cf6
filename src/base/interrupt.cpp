#include "base/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace miles {
namespace {

volatile sig_atomic_t caught = 0;

void remember(int signal) {
  const int saved = errno;
  caught = signal;
  // The next one, of either kind, finds what was there before.
  ::signal(SIGINT, SIG_DFL);
  ::signal(SIGTERM, SIG_DFL);
  constexpr std::string_view kNotice =
      "\nending at the next safe point; a second signal ends at once\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kNotice.data(), kNotice.size());
  errno = saved;
}

}  // namespace

void catch_interrupts() {
  caught = 0;
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction before = {};
    sigaction(signal, nullptr, &before);
    if ((before.sa_flags & SA_SIGINFO) == 0 && before.sa_handler == SIG_IGN) continue;
    struct sigaction action = {};
    action.sa_handler = remember;
    action.sa_flags = SA_RESTART;  // files are read and written as if nothing had happened
    sigaction(signal, &action, nullptr);
  }
}

int interrupted() {
  return caught;
}

void stop_if_interrupted() {
  if (caught != 0) throw Interrupted(caught);
}

}  // namespace miles
