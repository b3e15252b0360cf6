// What every benchmark's main() does around its work.
#pragma once

#include <fmt/format.h>

#include "base/error.h"

namespace miles::bench {

/// The exit code of `run`, or of the Error that it throws, which is shown.
template <class Run>
int run_main(Run&& run) {
  try {
    return run();
  } catch (const Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return error.exit_code();
  }
}

}  // namespace miles::bench
