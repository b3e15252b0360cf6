#include "base/units.h"

#include <cctype>
#include <charconv>
#include <cmath>

#include "base/error.h"

namespace miles {

std::string format_bytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  if (std::llabs(bytes) < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  int unit = 0;
  while (std::fabs(value) >= 1024 && unit < 3) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string format_count(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string format_seconds(double seconds) {
  if (seconds < 1) return fmt::format("{:.1f} ms", seconds * 1e3);
  if (seconds < 120) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 7200) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

int64_t parse_bytes(std::string_view text, std::string_view what) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  std::string unit;
  for (const char* c = parsed.ptr; c != end; ++c)
    if (*c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  double scale = 0;
  if (unit.empty() || unit == "b") {
    scale = 1;
  } else {
    const size_t power = std::string_view("kmgt").find(unit[0]);
    const std::string rest = unit.substr(1);
    if (power != std::string_view::npos && (rest.empty() || rest == "ib"))
      scale = std::pow(1024.0, static_cast<double>(power + 1));
    else if (power != std::string_view::npos && rest == "b")
      scale = std::pow(1000.0, static_cast<double>(power + 1));
  }
  if (parsed.ec != std::errc() || scale == 0 || !(number >= 0) || number * scale > 9e18)
    fail(ErrorCode::flags,
         "{}: cannot read '{}' as a number of bytes; write for example 24GiB, 512MiB or 4096", what,
         text);
  return static_cast<int64_t>(std::llround(number * scale));
}

}  // namespace miles
