#include "cli/toml.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>

#include "base/error.h"

namespace miles {
namespace {

class Reader {
 public:
  Reader(const std::string& content, const std::string& file) : content_(content), file_(file) {
    constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
    if (content.starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
  }

  std::vector<TomlEntry> read() {
    std::vector<TomlEntry> entries;
    for (skip_empty(); !at_end(); skip_empty()) {
      TomlEntry entry = read_entry();
      for (const TomlEntry& earlier : entries)
        if (earlier.key == entry.key)
          refuse("{} is on line {} already; keep one of them", entry.key, earlier.line);
      entries.push_back(std::move(entry));
    }
    return entries;
  }

 private:
  bool at_end() const { return at_ == content_.size(); }
  char here() const { return at_end() ? '\n' : content_[at_]; }
  void advance() {
    if (here() == '\n') ++line_;
    ++at_;
  }
  bool take(char c) {
    if (at_end() || here() != c) return false;
    advance();
    return true;
  }

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorCode::flags, "{}:{}: {}", file_, line_,
         fmt::format(format, std::forward<Args>(args)...));
  }

  void skip_blanks() {
    while (!at_end() && (here() == ' ' || here() == '\t' || here() == '\r')) advance();
  }

  void skip_comment() {
    if (!at_end() && here() == '#')
      while (!at_end() && here() != '\n') advance();
  }

  /// Blanks, comments and line ends.
  void skip_empty() {
    do {
      skip_blanks();
      skip_comment();
    } while (take('\n'));
  }

  TomlEntry read_entry() {
    if (here() == '[')
      refuse("there are no sections here; write each flag as \"name = value\", without dashes");
    TomlEntry entry;
    entry.line = line_;
    while (!at_end() && here() != '=' && here() != '\n' && here() != '#') {
      entry.key += here();
      advance();
    }
    entry.key.erase(entry.key.find_last_not_of(" \t\r") + 1);
    for (const char quote : {'"', '\''})
      if (entry.key.size() > 1 && entry.key.front() == quote && entry.key.back() == quote)
        entry.key = entry.key.substr(1, entry.key.size() - 2);
    if (!take('=') || entry.key.empty()) refuse("'{}' is not a line \"name = value\"", entry.key);
    skip_blanks();
    entry.is_array = take('[');
    if (entry.is_array)
      read_array(entry.values);
    else
      entry.values.push_back(read_value("#\n"));
    skip_blanks();
    skip_comment();
    if (here() != '\n') refuse("'{}' follows the value of {}", rest_of_line(), entry.key);
    return entry;
  }

  void read_array(std::vector<std::string>& values) {
    for (skip_empty(); !take(']'); skip_empty()) {
      values.push_back(read_value(",]#\n"));
      skip_empty();
      if (take(',')) continue;
      if (here() != ']') refuse("an array has no end: ',' or ']' is missing");
    }
  }

  /// A string in quotes, or what comes before one of the characters `ends`.
  std::string read_value(std::string_view ends) {
    if (here() == '"') return read_string();
    if (take('\'')) return read_literal();
    std::string word;
    while (!at_end() && ends.find(here()) == std::string_view::npos) {
      word += here();
      advance();
    }
    word.erase(word.find_last_not_of(" \t\r") + 1);
    if (word.empty()) refuse("a value is missing; write \"\" for an empty text");
    return word;
  }

  /// Its escapes are JSON's.
  std::string read_string() {
    const size_t begin = at_;
    advance();
    while (!at_end() && here() != '"' && here() != '\n') {
      if (here() == '\\') advance();
      if (!at_end()) advance();
    }
    if (!take('"')) refuse("a text has no closing '\"'");
    const auto text =
        nlohmann::json::parse(content_.begin() + static_cast<std::ptrdiff_t>(begin),
                              content_.begin() + static_cast<std::ptrdiff_t>(at_), nullptr, false);
    if (!text.is_string())
      refuse("cannot read {}; a backslash is written \\\\, or the text in single quotes",
             content_.substr(begin, at_ - begin));
    return text.get<std::string>();
  }

  std::string read_literal() {
    std::string text;
    for (; !at_end() && here() != '\'' && here() != '\n'; advance()) text += here();
    if (!take('\'')) refuse("a text has no closing \"'\"");
    return text;
  }

  std::string rest_of_line() const { return content_.substr(at_, content_.find('\n', at_) - at_); }

  const std::string& content_;
  const std::string& file_;
  size_t at_ = 0;     // into content_
  int64_t line_ = 1;  // of at_
};

}  // namespace

std::vector<TomlEntry> read_toml(const std::string& content, const std::string& file) {
  return Reader(content, file).read();
}

std::string toml_value(const std::string& text) {
  static const std::regex bare(
      "true|false|[-+]?([0-9]+|[0-9]+\\.[0-9]*|\\.[0-9]+)([eE][-+]?[0-9]+)?");
  if (std::regex_match(text, bare)) return text;
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace miles
