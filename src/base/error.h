// Errors. Two kinds, never mixed:
//   miles::Error   what a user can mend (a flag, a file, a budget): thrown, caught once in main().
//   MILES_CHECK    what only we can mend (a broken invariant): prints where and why, then aborts.
// A message gives the value that was found, what is allowed, and what to do.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace miles {

/// The kind of an error; its value is the program's exit code.
enum class ErrorCode {
  internal = 1,  // a bug of ours, or an unforeseen failure
  flags = 2,     // flags or configuration
  data = 3,      // files and data
  budget = 4,    // does not fit in a memory budget
  device = 5,    // the device, its driver or its libraries
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }
  int exit_code() const { return static_cast<int>(code_); }

 private:
  ErrorCode code_;
};

/// Throws Error{code, fmt::format(format, args...)}.
template <class... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

/// Prints "file:line: check failed: expression: message" to stderr and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* expression,
                               const std::string& message);

}  // namespace miles

/// Aborts unless `condition` holds; the remaining arguments are a fmt format and its values.
#define MILES_CHECK(condition, ...)                                                      \
  do {                                                                                   \
    if (!(condition)) [[unlikely]]                                                       \
      ::miles::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)
