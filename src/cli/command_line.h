// What every command shares: how flags are declared, read from a file, and written down.
#pragma once

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "cli/number.h"

namespace miles {

/// One command's flags. Declared once, they can be given on the command line and in --config FILE
/// (TOML, the flags' names without dashes). A value that is not allowed is refused with what was
/// given, where, and what is allowed.
class CommandLine {
 public:
  CommandLine(const std::string& command, const std::string& description);
  CommandLine(const CommandLine&) = delete;  // flags know where it is
  CommandLine& operator=(const CommandLine&) = delete;

  CLI::App& app() { return app_; }

  /// A flag whose value is one of a set of names.
  template <class Enum>
  CLI::Option* choice(const std::string& flag, Enum& to, const std::map<std::string, Enum>& names,
                      const std::string& description) {
    std::vector<std::string> words;
    std::string fallback;
    for (const auto& [word, value] : names) {
      words.push_back(word);
      if (value == to) fallback = word;
    }
    const auto set = [this, flag, &to, names, words](const std::string& word) {
      const auto found = names.find(word);
      if (found == names.end())
        refuse(flag, word, fmt::format("one of {}", fmt::join(words, ", ")));
      to = found->second;
    };
    return app_.add_option_function<std::string>(flag, set, description)
        ->default_str(fallback)
        ->type_name(fmt::format("{{{}}}", fmt::join(words, ",")));
  }

  /// A flag whose value is a number.
  template <class T>
  CLI::Option* number(const std::string& flag, T& to, const Range<T>& range,
                      const std::string& description) {
    return optional_number<T>(flag, to, range, description)->default_str(fmt::format("{}", to));
  }
  template <class T>
  CLI::Option* number(const std::string& flag, std::optional<T>& to, const Range<T>& range,
                      const std::string& description) {
    return optional_number<T>(flag, to, range, description);
  }

  /// A flag whose values are numbers, or texts.
  CLI::Option* numbers(const std::string& flag, std::vector<int32_t>& to,
                       const Range<int32_t>& range, const std::string& description);
  CLI::Option* texts(const std::string& flag, std::vector<std::string>& to,
                     const std::string& description);

  /// A flag whose value is a number of bytes ("24GiB").
  CLI::Option* bytes(const std::string& flag, std::optional<int64_t>& to,
                     const std::string& description);

  /// Reads the arguments (without the program's and the command's name). Returns false when help
  /// was printed. Throws Error{flags}, or Error{data} when --config's file cannot be read.
  bool parse(int argc, const char* const* argv);

  /// Writes down a value that was worked out, as if it had been given.
  void resolve(const std::string& flag, const std::string& value);
  /// All flags with their values, as TOML that --config reads.
  std::string to_toml() const;

 private:
  template <class T, class To>
  CLI::Option* optional_number(const std::string& flag, To& to, const Range<T>& range,
                               const std::string& description) {
    const auto set = [this, flag, &to, range](const std::string& text) {
      const std::optional<T> value = parse_number(text, range);
      if (!value) refuse(flag, text, describe(range));
      to = *value;
    };
    return app_.add_option_function<std::string>(flag, set, description)
        ->type_name(std::integral<T> ? "N" : "X");
  }

  /// "--lr", or "FILE:LINE: lr" where a file gave it.
  std::string where(const std::string& flag) const;
  [[noreturn]] void refuse(const std::string& flag, const std::string& text,
                           const std::string& allowed) const;

  CLI::App app_;
  std::string command_;
  std::map<std::string, std::string> places_;  // "--lr" → "FILE:LINE": flags that a file gave
};

}  // namespace miles
