#include "base/interrupt.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <string_view>
#include <thread>

#include "base/process_groups.h"

namespace miles {
namespace {

std::atomic<bool> catching = false;
std::atomic<int> caught = 0;

/// Ends the program as the signal does where nobody waits for it.
[[noreturn]] void die_of(int signal) {
  kill_process_groups();
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, signal);
  pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  ::raise(signal);
  ::_exit(128 + signal);  // process 1 of a container, which no signal's default action ends
}

/// Takes the signals of the set, for ever.
void watch(const sigset_t& watched) {
  for (;;) {
    int signal = 0;
    if (sigwait(&watched, &signal) != 0) continue;
    if (!catching || caught != 0) die_of(signal);
    caught = signal;
    constexpr std::string_view kNotice =
        "\nending at the next safe point; a second signal ends at once\n";
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kNotice.data(), kNotice.size());
  }
}

}  // namespace

void watch_for_interrupts() {
  sigset_t watched;
  sigemptyset(&watched);
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction now = {};
    sigaction(signal, nullptr, &now);
    if (now.sa_handler != SIG_IGN) sigaddset(&watched, signal);
  }
  pthread_sigmask(SIG_BLOCK, &watched, nullptr);
  std::thread([watched] { watch(watched); }).detach();
}

void catch_interrupts() {
  catching = true;
}

int interrupted() {
  return caught;
}

void stop_if_interrupted() {
  if (const int signal = caught; signal != 0) throw Interrupted(signal);
}

}  // namespace miles
