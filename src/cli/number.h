// Numbers as flags take them.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>

namespace miles {

/// What a flag's number may be.
template <class T>
struct Range {
  T least = 0;
  T most = std::floating_point<T> ? T(1e30) : T(1'000'000'000'000);
  bool above_least = false;  // it must be more than `least`
};

/// "a whole number from 1 to 8", "a number above 0, up to 1".
template <class T>
std::string describe(const Range<T>& range) {
  return fmt::format("a {}number {} {}{} to {}", std::integral<T> ? "whole " : "",
                     range.above_least ? "above" : "from", range.least,
                     range.above_least ? ", up" : "", range.most);
}

/// The number that the whole of `text` is; none when it is none, or out of range.
template <class T>
std::optional<T> parse_number(const std::string& text, const Range<T>& range) {
  T value = 0;
  const char* begin = text.data() + (text.starts_with('+') && text.size() > 1 ? 1 : 0);
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || rest != end) return std::nullopt;
  const bool inside = range.above_least ? value > range.least : value >= range.least;
  if (!inside || !(value <= range.most)) return std::nullopt;  // a NaN is neither
  return value;
}

}  // namespace miles
