#include "base/error.h"

#include <cstdio>
#include <cstdlib>

namespace miles {

void check_failed(const char* file, int line, const char* expression, const std::string& message) {
  std::fprintf(stderr, "%s:%d: check failed: %s: %s\n", file, line, expression, message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace miles
