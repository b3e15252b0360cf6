// The log: plain lines on stderr, "12:34:56 info …" (spdlog). stdout belongs to results.
#pragma once

#include <spdlog/spdlog.h>

namespace miles {

/// Sets format and level; called once at the start of main(). `level`: trace … error, off.
void start_logging(spdlog::level::level_enum level);

namespace log {
using spdlog::debug;
using spdlog::error;
using spdlog::info;
using spdlog::warn;
}  // namespace log

}  // namespace miles
