// A command's arguments, before any value is looked at: words become flags with their values, those
// of --config FILE come in between, and what is no flag is refused first, all of it at once.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace miles {

struct Arguments {
  std::vector<std::string> words;  // each flag before each of its values; the file's flags first
  std::map<std::string, std::string> places;  // "--lr" → "FILE:LINE": flags that the file gave
};

/// `words`: as the shell gave them, without the program's and the command's name. What is given
/// here wins over the file. Throws Error{flags} naming what is no flag, in the order given, each
/// with the nearest flag there is, or a flag without its value; Error{data} when the file cannot be
/// read.
Arguments read_arguments(const CLI::App& app, std::span<const char* const> words);

}  // namespace miles
