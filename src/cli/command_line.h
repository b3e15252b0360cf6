// What every command shares: how flags are declared, read from a file, and written down.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/units.h"

namespace miles {

/// One command's flags. Declared once, they can be given on the command line and in --config FILE
/// (TOML, the flags' names without dashes).
class CommandLine {
 public:
  CommandLine(const std::string& command, const std::string& description);

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
    return app_
        .add_option_function<std::string>(
            flag, [&to, names](const std::string& word) { to = names.at(word); }, description)
        ->check(CLI::IsMember(words))
        ->default_str(fallback)
        ->type_name("");
  }

  /// A flag whose value is a number of bytes ("24GiB").
  CLI::Option* bytes(const std::string& flag, std::optional<int64_t>& to,
                     const std::string& description);

  /// Reads the arguments (without the program's and the command's name). Returns false when help or
  /// the version was printed. Throws Error{flags}.
  bool parse(int argc, const char* const* argv);

  /// Writes down a value that was worked out, as if it had been given.
  void resolve(const std::string& flag, const std::string& value);
  /// All flags with their values, as TOML that --config reads.
  std::string to_toml() const;

 private:
  CLI::App app_;
  std::string command_;
};

}  // namespace miles
