// The part of TOML (https://toml.io/en/v1.0.0) that flags need: lines "name = value", where a value
// is a string, a number, a truth value, or an array of those over one or more lines; and comments.
// A word without quotes counts as a string.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace miles {

struct TomlEntry {
  std::string key;
  std::vector<std::string> values;  // strings without their quotes, all else as it is written
  bool is_array = false;
  int64_t line = 0;  // from 1
};

/// The entries of a file's `content`, in order. Throws Error{flags} beginning "FILE:LINE:" for what
/// is none of the above, and for a key that comes twice.
std::vector<TomlEntry> read_toml(const std::string& content, const std::string& file);

/// `text` as a value that read_toml gives back: numbers and truth values bare, all else quoted.
std::string toml_value(const std::string& text);

}  // namespace miles
