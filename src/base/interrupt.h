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

/// From now on the first SIGINT or SIGTERM is remembered, and said on stderr. One that is ignored
/// (by nohup, say) stays so.
void catch_interrupts();

/// The signal that has come since catch_interrupts(); 0: none.
int interrupted();

/// Throws Interrupted when a signal has come. For the points between steps of work that takes long.
void stop_if_interrupted();

}  // namespace miles
