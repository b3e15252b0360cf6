#include "cli/arguments.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/shell.h"
#include "cli/toml.h"
#include "text/utf8.h"

namespace miles {
namespace {

/// "-3" and "-.5" are numbers.
bool is_flag(std::string_view word) {
  return word.size() > 1 && word[0] == '-' &&
         std::string_view(".0123456789").find(word[1]) == std::string_view::npos;
}

bool takes_value(const CLI::Option& option) {
  return option.get_items_expected_max() > 0;
}

bool takes_many(const CLI::Option& option) {
  return option.get_items_expected_max() > 1;
}

/// How many characters must be inserted, removed or replaced to make `b` of `a` (Levenshtein).
size_t edits(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

/// The flag that was probably meant by `name` (without dashes); empty when none is near.
std::string nearest(const CLI::App& app, std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  std::string best;
  if (name.empty()) return best;
  // A third may be wrong, at least two characters, but never all of them.
  size_t fewest = std::min(std::max<size_t>(2, name.size() / 3) + 1, name.size());
  for (const CLI::Option* option : app.get_options())
    for (const std::string& known : option->get_lnames()) {
      if (option->get_group().empty()) continue;  // hidden
      // What was cut short is nearer than what was misspelt.
      const bool cut =
          name.size() > 3 && (known.starts_with(name + '-') || known.ends_with('-' + name));
      const size_t distance = cut ? 1 : edits(name, known);
      if (distance < fewest) {
        fewest = distance;
        best = known;
      }
    }
  return best;
}

class Reader {
 public:
  explicit Reader(const CLI::App& app) : app_(app) {}

  Arguments read(std::span<const char* const> words) {
    for (const char* word : words)  // config.toml and checkpoints write it down, in UTF-8
      if (!is_valid_utf8(word))
        fail(ErrorCode::flags, "'{}' is not UTF-8, as text and names of files must be",
             repair_utf8(word));
    read_words({words.begin(), words.end()});
    if (help_) return {.words = {"--help"}, .places = {}};
    if (!unknown_.empty())
      fail(ErrorCode::flags, "no such flag: {}; see {} --help", fmt::join(unknown_, ", "),
           app_.get_name());
    if (!missing_.empty())
      fail(ErrorCode::flags, "{}: its value is missing; see {} --help", missing_, app_.get_name());
    Arguments arguments;
    if (config_) read_config(arguments);
    arguments.words.insert(arguments.words.end(), words_.begin(), words_.end());
    return arguments;
  }

 private:
  void read_words(const std::vector<std::string>& words) {
    const auto positionals = std::ranges::count_if(
        app_.get_options(), [](const CLI::Option* option) { return option->get_positional(); });
    int64_t found = 0;
    for (size_t i = 0; i < words.size(); ++i) {
      const std::string& word = words[i];
      if (!is_flag(word)) {
        if (++found <= positionals)
          words_.push_back(word);
        else
          unknown_.push_back(stray(words, i));
        continue;
      }
      const size_t equals = word.find('=');
      const std::string name = word.substr(0, equals);
      const CLI::Option* option = app_.get_option_no_throw(name);
      if (option == nullptr) {
        unknown_.push_back(described(name));
        while (i + 1 < words.size() && !is_flag(words[i + 1])) ++i;  // its value, most likely
        continue;
      }
      if (option == app_.get_help_ptr()) help_ = true;
      std::vector<std::string> values;
      if (equals != std::string::npos) values.push_back(word.substr(equals + 1));
      // A flag's first word is its value, whatever it looks like, unless it is another flag.
      if (takes_value(*option) && equals == std::string::npos && i + 1 < words.size() &&
          is_flag(words[i + 1]) &&
          app_.get_option_no_throw(words[i + 1].substr(0, words[i + 1].find('='))) != nullptr)
        fail(ErrorCode::flags,
             "{}: its value is missing, for {} is a flag; write {}={} if it is the "
             "value",
             name, words[i + 1], name, words[i + 1]);
      const auto wants_more = [&] {
        if (!takes_value(*option) || equals != std::string::npos) return false;
        return values.empty() || (takes_many(*option) && !is_flag(words[i + 1]));
      };
      while (i + 1 < words.size() && wants_more()) values.push_back(words[++i]);
      if (takes_value(*option) && values.empty()) missing_ = name;
      if (option->get_name() == "--config" && !values.empty())
        config_ = values.back();
      else
        add(words_, {*option, name, values}, name);
      const auto [before, first] = given_.try_emplace(option, name, values);
      if (!first && takes_value(*option) && before->second.first != name &&
          before->second.second != values)
        fail(ErrorCode::flags, "{} {} and {} {}: two names of one flag; pass one of them",
             before->second.first, fmt::join(before->second.second, " "), name,
             fmt::join(values, " "));
    }
  }

  std::string described(const std::string& flag) const {
    const std::string near =
        nearest(app_, flag.substr(std::min(flag.find_first_not_of('-'), flag.size())));
    return near.empty() ? flag : fmt::format("{} (is it --{}?)", flag, near);
  }

  /// A word that belongs to nothing. After a flag's value it is often the rest of it.
  std::string stray(const std::vector<std::string>& words, size_t i) const {
    std::string text = fmt::format("'{}'", words[i]);
    if (i < 2 || is_flag(words[i - 1])) return text;
    const CLI::Option* const flag = app_.get_option_no_throw(words[i - 2]);
    if (flag == nullptr || !takes_value(*flag)) return text;
    return fmt::format("{} (if it belongs to {}, write {} {})", text, words[i - 2], words[i - 2],
                       shell_word(words[i - 1] + ' ' + words[i]));
  }

  static std::string content_of(const std::string& config) {
    try {
      return read_file(config);
    } catch (const Error& error) {
      fail(error.code(), "--config {}", error.what());
    }
  }

  void read_config(Arguments& arguments) const {
    for (const TomlEntry& entry : read_toml(content_of(*config_), *config_)) {
      const std::string place = fmt::format("{}:{}", *config_, entry.line);
      const CLI::Option* option = app_.get_option_no_throw("--" + entry.key);
      if (option != nullptr && !option->get_configurable())
        fail(ErrorCode::flags, "{}: {} is for the command line alone", place, entry.key);
      if (option == nullptr) {
        const std::string near = nearest(app_, entry.key);
        fail(ErrorCode::flags, "{}: there is no flag {}{}; see {} --help", place, entry.key,
             near.empty() ? "" : fmt::format(" (is it {}?)", near), app_.get_name());
      }
      if (entry.is_array && !takes_many(*option))
        fail(ErrorCode::flags, "{}: {} takes one value, not an array", place, entry.key);
      if (given_.contains(option)) continue;
      arguments.places["--" + option->get_lnames().front()] = place;
      add(arguments.words, {*option, "--" + entry.key, entry.values},
          fmt::format("{}: {}", place, entry.key));
    }
  }

  struct Given {
    const CLI::Option& option;
    std::string name;                 // as given, with dashes
    std::vector<std::string> values;  // of a switch: none, or whether it holds
  };

  /// `shown`: how an error names it.
  static void add(std::vector<std::string>& words, const Given& given, const std::string& shown) {
    for (const std::string& value : given.values) {
      if (takes_value(given.option)) {
        words.insert(words.end(), {given.name, value});
      } else if (value == "true" || value == "false") {
        words.push_back(given.name + "=" + value);
      } else {
        fail(ErrorCode::flags, "{} is a switch: it takes true or false, not '{}'", shown, value);
      }
    }
    if (given.values.empty() && !takes_value(given.option)) words.push_back(given.name);
  }

  const CLI::App& app_;
  std::vector<std::string> words_;
  std::vector<std::string> unknown_;   // as they are shown
  std::string missing_;                // the last flag that has no value
  std::optional<std::string> config_;  // FILE of --config
  // Not by the file: the name it was given by first, and its values then.
  std::map<const CLI::Option*, std::pair<std::string, std::vector<std::string>>> given_;
  bool help_ = false;
};

}  // namespace

Arguments read_arguments(const CLI::App& app, std::span<const char* const> words) {
  return Reader(app).read(words);
}

}  // namespace miles
