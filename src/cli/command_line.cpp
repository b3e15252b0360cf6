#include "cli/command_line.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <regex>

namespace miles {

CommandLine::CommandLine(const std::string& command, const std::string& description)
    : app_(description, "miles " + command), command_(command) {
  // As everywhere: what is given last counts. Lists take all (declared so where they are).
  app_.option_defaults()->take_last();
  app_.set_config("--config", "",
                  "TOML file with flags (names without dashes); flags given here win")
      ->configurable(false);
  app_.allow_config_extras(CLI::config_extras_mode::error);
  app_.get_formatter()->column_width(44);
  app_.set_help_flag("-h,--help", "Show this and exit")->configurable(false);
}

CLI::Option* CommandLine::bytes(const std::string& flag, std::optional<int64_t>& to,
                                const std::string& description) {
  return app_
      .add_option_function<std::string>(
          flag, [&to, flag](const std::string& text) { to = parse_bytes(text, flag); }, description)
      ->type_name("BYTES");
}

bool CommandLine::parse(int argc, const char* const* argv) {
  std::vector<std::string> arguments(argv, argv + argc);
  std::reverse(arguments.begin(), arguments.end());
  try {
    app_.parse(arguments);
  } catch (const CLI::CallForHelp& request) {
    app_.exit(request, std::cout, std::cerr);
    return false;
  } catch (const CLI::FileError& error) {
    fail(ErrorCode::data, "--config: {}", error.what());
  } catch (const CLI::ParseError& error) {
    fail(ErrorCode::flags, "{}; see miles {} --help", error.what(), command_);
  }
  return true;
}

void CommandLine::resolve(const std::string& flag, const std::string& value) {
  CLI::Option* option = app_.get_option(flag);
  option->clear();
  option->add_result(value);
}

namespace {

/// As TOML: numbers and truth values bare, everything else quoted.
std::string toml_value(const std::string& text) {
  static const std::regex bare(
      "true|false|[-+]?([0-9]+|[0-9]+\\.[0-9]*|\\.[0-9]+)([eE][-+]?[0-9]+)?");
  return std::regex_match(text, bare) ? text : nlohmann::json(text).dump();
}

std::string toml_value(const std::vector<std::string>& words) {
  std::vector<std::string> values;
  values.reserve(words.size());
  for (const std::string& word : words) values.push_back(toml_value(word));
  return fmt::format("[{}]", fmt::join(values, ", "));
}

/// Whether a flag says what the run is, and not merely where this process began or ended.
bool repeats(const CLI::Option& option) {
  const std::string& name = option.get_lnames().front();
  return name != "load" && name != "debug-exit-after-rollout";
}

/// A flag without a value. One declared as "!--name" sets its variable to false when it is given,
/// and to true when a file says that it is not; what is written is whether the flag holds. So a
/// variable that is true by default has such a flag, and one that is false has a plain one.
std::string switch_value(const CLI::Option& option) {
  const bool negated = option.check_fname(option.get_lnames().front());
  const bool set =
      option.count() > 0 ? CLI::detail::to_flag_value(option.results().front()) > 0 : negated;
  return set != negated ? "true" : "false";
}

}  // namespace

std::string CommandLine::to_toml() const {
  std::map<std::string, std::vector<std::string>> lines;  // by group
  for (const CLI::Option* option : app_.get_options()) {
    if (!option->get_configurable() || option->get_lnames().empty() || option->get_group().empty())
      continue;
    std::string value;
    if (option->get_expected_max() == 0)
      value = switch_value(*option);
    else if (option->get_expected_max() > 1)
      value = option->count() > 0 ? toml_value(option->results()) : "";
    else if (option->count() > 0)
      value = toml_value(option->results().back());
    else if (!option->get_default_str().empty())
      value = toml_value(option->get_default_str());
    // What was left open and has no default does not appear.
    if (!value.empty())
      lines[option->get_group()].push_back(fmt::format("{}{} = {}", repeats(*option) ? "" : "# ",
                                                       option->get_lnames().front(), value));
  }
  std::string text = fmt::format("# miles {} --config FILE repeats this\n", command_);
  for (const auto& [group, entries] : lines)
    text += fmt::format("\n# {}\n{}\n", group, fmt::join(entries, "\n"));
  return text;
}

}  // namespace miles
