#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/text_pattern.h"

#include <pcre2.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "text/utf8.h"

namespace miles {
namespace {

// PCRE2's \s also takes U+180E; this is White_Space exactly.
constexpr std::string_view kWhiteSpace =
    R"(\x{09}-\x{0D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F})"
    R"(\x{3000})";

// Letters and numbers that Unicode 15 and 16 added: PCRE2 10.42 knows Unicode 14, and a token must
// not depend on the library's age.
constexpr std::string_view kNewLetters =
    R"(\x{1C89}\x{1C8A}\x{A7CB}-\x{A7CD}\x{A7DA}-\x{A7DC}\x{105C0}-\x{105F3}\x{10D4A}-\x{10D65})"
    R"(\x{10D6F}-\x{10D85}\x{10EC2}-\x{10EC4}\x{1123F}\x{11240}\x{11380}-\x{11389}\x{1138B})"
    R"(\x{1138E}\x{11390}-\x{113B5}\x{113B7}\x{113D1}\x{113D3}\x{11BC0}-\x{11BE0}\x{11F02})"
    R"(\x{11F04}-\x{11F10}\x{11F12}-\x{11F33}\x{1342F}\x{13441}-\x{13446}\x{13460}-\x{143FA})"
    R"(\x{16100}-\x{1611D}\x{16D40}-\x{16D6C}\x{18CFF}\x{1B132}\x{1B155}\x{1DF25}-\x{1DF2A})"
    R"(\x{1E030}-\x{1E06D}\x{1E4D0}-\x{1E4EB}\x{1E5D0}-\x{1E5ED}\x{1E5F0}\x{2B739})"
    R"(\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})";
constexpr std::string_view kNewNumbers =
    R"(\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{11F50}-\x{11F59})"
    R"(\x{16130}-\x{16139}\x{16D70}-\x{16D79}\x{1CCF0}-\x{1CCF9}\x{1D2C0}-\x{1D2D3})"
    R"(\x{1E4F0}-\x{1E4F9}\x{1E5F1}-\x{1E5FA})";

/// A class of characters that PCRE2 does not read as we need it.
struct SpeltClass {
  std::string_view name;  // as the expression writes it
  std::string members;    // what it means, as the inside of a bracket
  bool negated = false;   // can be spelt out only outside of brackets
};

const SpeltClass* spelt_class_at(std::string_view expression) {
  static const std::string kSpace(kWhiteSpace);
  static const std::string kLetter = std::string(R"(\p{L})").append(kNewLetters);
  static const std::string kNumber = std::string(R"(\p{N})").append(kNewNumbers);
  static const SpeltClass kClasses[] = {{R"(\s)", kSpace},     {R"(\S)", kSpace, true},
                                        {R"(\p{L})", kLetter}, {R"(\P{L})", kLetter, true},
                                        {R"(\p{N})", kNumber}, {R"(\P{N})", kNumber, true}};
  for (const SpeltClass& known : kClasses)
    if (expression.starts_with(known.name)) return &known;
  return nullptr;
}

/// The expression with those classes spelt out.
std::string spell_out_classes(std::string_view expression) {
  std::string out;
  bool in_brackets = false;
  for (size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    if (c == '\\' && i + 1 < expression.size()) {
      const SpeltClass* known = spelt_class_at(expression.substr(i));
      if (known == nullptr || (in_brackets && known->negated)) {
        out += {c, expression[++i]};
        continue;
      }
      const std::string open = in_brackets ? "" : known->negated ? "[^" : "[";
      out.append(open).append(known->members).append(in_brackets ? "" : "]");
      i += known->name.size() - 1;
      continue;
    }
    out += c;
    if (c == '[' && !in_brackets) {
      in_brackets = true;
      // A bracket that closes at once is a member: "[]…]", "[^]…]".
      if (i + 1 < expression.size() && expression[i + 1] == '^') out += expression[++i];
      if (i + 1 < expression.size() && expression[i + 1] == ']') out += expression[++i];
    } else if (c == ']') {
      in_brackets = false;
    }
  }
  return out;
}

std::string pcre2_message(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

/// What one thread needs to match: reused, since a JIT stack is costly to make.
struct Scratch {
  Scratch()
      : data(pcre2_match_data_create(16, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(64 << 10, 64 << 20, nullptr)) {
    MILES_CHECK(data != nullptr && context != nullptr && stack != nullptr, "PCRE2: out of memory");
    pcre2_jit_stack_assign(context, nullptr, stack);
    pcre2_set_match_limit(context, 1u << 31);  // long runs of one kind are no attack
  }
  ~Scratch() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

Scratch& scratch() {
  thread_local Scratch mine;
  return mine;
}

}  // namespace

struct TextPattern::Compiled {
  explicit Compiled(pcre2_code* compiled) : code(compiled) {}
  ~Compiled() { pcre2_code_free(code); }
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;

  /// The first match at or after `from`.
  std::optional<TextSpan> find(std::string_view text, size_t from) const {
    Scratch& mine = scratch();
    const int found = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                  from, PCRE2_NO_UTF_CHECK, mine.data, mine.context);
    if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
    if (found < 0)
      fail(ErrorCode::data, "splitting a text of {} bytes into words failed: {}; shorten the text",
           text.size(), pcre2_message(found));
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(mine.data);
    return TextSpan{ends[0], ends[1]};
  }

  pcre2_code* code;
};

TextPattern TextPattern::literal(std::string text) {
  TextPattern pattern;
  pattern.literal_ = std::move(text);
  return pattern;
}

TextPattern TextPattern::regex(const std::string& expression, const std::string& where) {
  const std::string spelt = spell_out_classes(expression);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelt.data()), spelt.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset, nullptr);
  if (code == nullptr)
    fail(ErrorCode::data, "{}: the regular expression {} is not supported: {}, before '{}'", where,
         expression, pcre2_message(error), spelt.substr(offset, 20));
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where there is no JIT, PCRE2 interprets
  TextPattern pattern;
  pattern.compiled_ = std::make_shared<const Compiled>(code);
  return pattern;
}

TextPattern TextPattern::from_json(const nlohmann::json& pattern, const std::string& where) {
  if (pattern.is_object() && pattern.size() == 1 && pattern.begin()->is_string()) {
    const auto& text = pattern.begin()->get_ref<const std::string&>();
    if (pattern.begin().key() == "String") return literal(text);
    if (pattern.begin().key() == "Regex") return regex(text, where);
  }
  fail(ErrorCode::data, "{}: pattern is {}, expected {{\"String\": …}} or {{\"Regex\": …}}", where,
       pattern.dump());
}

std::vector<TextSpan> TextPattern::find_all(std::string_view text) const {
  return compiled_ ? find_regex(text) : find_literal(text);
}

std::vector<TextSpan> TextPattern::find_literal(std::string_view text) const {
  std::vector<TextSpan> matches;
  if (literal_.empty()) return matches;
  for (size_t at = 0; (at = text.find(literal_, at)) != std::string_view::npos;) {
    matches.push_back({at, at + literal_.size()});
    at += literal_.size();
  }
  return matches;
}

std::vector<TextSpan> TextPattern::find_regex(std::string_view text) const {
  std::vector<TextSpan> matches;
  size_t from = 0;
  while (from <= text.size()) {
    const auto match = compiled_->find(text, from);
    if (!match) break;
    const bool empty = match->begin == match->end;
    const bool touches = !matches.empty() && matches.back().end == match->begin;
    if (!empty || !touches) matches.push_back(*match);
    if (!empty) {
      from = match->end;
    } else if (match->begin < text.size()) {
      from = match->begin + utf8_step(text, match->begin).length;
    } else {
      break;
    }
  }
  return matches;
}

std::string TextPattern::replace_all(std::string_view text, std::string_view replacement) const {
  std::string out;
  size_t done = 0;
  for (const TextSpan& match : find_all(text)) {
    out.append(text, done, match.begin - done).append(replacement);
    done = match.end;
  }
  return out.append(text, done);
}

}  // namespace miles
