// Ctrl-C and SIGTERM as a wish: the work ends at its next safe point, as by an exception. A second
// one ends the program at once, as if it had not been caught.
#pragma once

#include <exception>

namespace miles {

/// Thrown at a safe point after a signal. No Error: nothing went wrong.
class Interrupted : public std::exception {
 public:
  explicit Interrupted(int signal) : signal_(signal) {}
  int signal() const { return signal_; }  // SIGINT or SIGTERM
  const char* what() const noexcept override { return "interrupted by a signal"; }

 private:
  int signal_;
};

/// From now on a thread of its own waits for SIGINT and SIGTERM, which no other thread is shown:
/// there is no handler, for it would run on the stack of whatever thread it meets, and oneDNN's
/// sgemm keeps its stack pointer where a handler's frame destroys memory. A signal ends the program,
/// and what start_process_group() has started, until catch_interrupts(). One that is ignored (by
/// nohup, say) stays so. To be called once, before there are other threads: they inherit what is
/// blocked.
void watch_for_interrupts();

/// From now on the first signal is remembered, and said on stderr.
void catch_interrupts();

/// The signal that has come since catch_interrupts(); 0: none.
int interrupted();

/// Throws Interrupted when a signal has come. For the points between steps of work that takes long.
void stop_if_interrupted();

}  // namespace miles
