#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

namespace miles {

void start_logging(spdlog::level::level_enum level) {
  auto logger = spdlog::get("miles");
  if (!logger) logger = spdlog::stderr_color_mt("miles");
  logger->set_pattern("%H:%M:%S %^%l%$ %v");
  logger->set_level(level);
  spdlog::set_default_logger(logger);
}

}  // namespace miles
