#include "cli/command_line.h"

#include <algorithm>
#include <iostream>

#include "cli/arguments.h"
#include "cli/toml.h"

namespace miles {
namespace {

constexpr size_t kNameColumn = 36;   // characters
constexpr size_t kDescription = 76;  // characters of a line beside it

/// `text` in lines of at most `width` characters, words that are longer apart.
std::string wrapped(const std::string& text, size_t width) {
  std::string lines;
  size_t used = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const size_t length = end - begin;
    if (used > 0) lines += used + 1 + length > width ? '\n' : ' ';
    used = used > 0 && used + 1 + length <= width ? used + 1 + length : length;
    lines.append(text, begin, length);
    begin = end + 1;
  }
  return lines;
}

/// "--name TYPE    what it is (default: value)".
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(kNameColumn); }

  std::string make_option_name(const CLI::Option* option, bool positional) const override {
    if (positional) return option->get_name(true);
    std::vector<std::string> names;
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    return fmt::format("{}", fmt::join(names, ", "));
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0 || option->get_type_name().empty()) return "";
    const bool many = option->get_items_expected_max() > 1;
    return fmt::format(" {}{}", option->get_type_name(), many ? " ..." : "");
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    std::string text = option->get_description();
    if (option->get_required()) text += " (required)";
    if (!option->get_default_str().empty())
      text += fmt::format(" (default: {})", option->get_default_str());
    return wrapped(text, kDescription);
  }
};

}  // namespace

CommandLine::CommandLine(const std::string& command, const std::string& description)
    : app_(description, "miles " + command), command_(command) {
  // As everywhere: what is given last counts. Lists take all (declared so where they are).
  app_.option_defaults()->take_last();
  app_.formatter(std::make_shared<HelpFormatter>());
  app_.set_help_flag("-h,--help", "show this and exit")->configurable(false);
  app_.add_option("--config", "TOML file with flags (names without dashes); flags given here win")
      ->type_name("FILE")
      ->configurable(false);
}

CLI::Option* CommandLine::numbers(const std::string& flag, std::vector<int32_t>& to,
                                  const Range<int32_t>& range, const std::string& description) {
  const auto set = [this, flag, &to, range](const std::vector<std::string>& words) {
    to.clear();
    for (const std::string& word : words) {
      const auto value = parse_number(word, range);
      if (!value) refuse(flag, word, describe(range));
      to.push_back(*value);
    }
  };
  return app_.add_option_function<std::vector<std::string>>(flag, set, description)
      ->take_all()
      ->allow_extra_args(false)
      ->type_name("N");
}

CLI::Option* CommandLine::texts(const std::string& flag, std::vector<std::string>& to,
                                const std::string& description) {
  return app_.add_option(flag, to, description)
      ->take_all()
      ->allow_extra_args(false)  // or "[END]" would be a list of one
      ->type_name("TEXT");
}

CLI::Option* CommandLine::bytes(const std::string& flag, std::optional<int64_t>& to,
                                const std::string& description) {
  const auto set = [this, flag, &to](const std::string& text) {
    to = parse_bytes(text, where(flag));
  };
  return app_.add_option_function<std::string>(flag, set, description)->type_name("BYTES");
}

std::string CommandLine::where(const std::string& flag) const {
  const std::string name = flag.substr(0, flag.find(','));
  const auto place = places_.find(name);
  return place == places_.end() ? name : fmt::format("{}: {}", place->second, name.substr(2));
}

void CommandLine::refuse(const std::string& flag, const std::string& text,
                         const std::string& allowed) const {
  fail(ErrorCode::flags, "{}: '{}' is not {}", where(flag), text, allowed);
}

bool CommandLine::parse(int argc, const char* const* argv) {
  Arguments arguments = read_arguments(app_, {argv, argv + argc});
  places_ = std::move(arguments.places);
  std::ranges::reverse(arguments.words);  // as CLI11 wants them
  try {
    app_.parse(std::move(arguments.words));
  } catch (const CLI::CallForHelp& request) {
    app_.exit(request, std::cout, std::cerr);
    return false;
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

std::string toml_array(const std::vector<std::string>& words) {
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
      value = option->count() > 0 ? toml_array(option->results()) : "";
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
