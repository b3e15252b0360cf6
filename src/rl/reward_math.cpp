#include "rl/reward_math.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

namespace miles {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

/// Past the brace that closes the one at `open`; npos when none does.
size_t past_closing_brace(std::string_view text, size_t open) {
  int depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    if (text[i] == '{') ++depth;
    if (text[i] == '}' && --depth == 0) return i + 1;
  }
  return std::string_view::npos;
}

/// Writes every \frac{a}{b} as a/b.
std::string unfold_fractions(std::string_view text) {
  constexpr std::string_view kFrac = "frac{";  // of \frac, \dfrac, \tfrac
  std::string out;
  while (true) {
    const size_t found = text.find(kFrac);
    const size_t slash = found == std::string_view::npos ? found : text.rfind('\\', found);
    if (found == std::string_view::npos || slash == std::string_view::npos || found - slash > 2)
      return out.append(text);  // no (further) fraction
    const size_t top = found + kFrac.size() - 1;
    const size_t bottom = past_closing_brace(text, top);
    if (bottom == std::string_view::npos || bottom >= text.size() || text[bottom] != '{')
      return out.append(text);
    const size_t end = past_closing_brace(text, bottom);
    if (end == std::string_view::npos) return out.append(text);
    out.append(text.substr(0, slash))
        .append(text.substr(top + 1, bottom - top - 2))
        .append("/")
        .append(text.substr(bottom + 1, end - bottom - 2));
    text.remove_prefix(end);
  }
}

/// The text with TeX's ways to write a number undone.
std::string plain(std::string_view text) {
  std::string out = unfold_fractions(text);
  replace_all(out, "{,}", ",");
  replace_all(out, "\\!", "");
  replace_all(out, "\\$", "$");
  replace_all(out, "\\%", "%");
  replace_all(out, "\xE2\x88\x92", "-");  // U+2212, the minus sign
  return out;
}

/// Reads numbers from the front of a text.
class NumberScanner {
 public:
  explicit NumberScanner(std::string_view text) : text_(text) {}

  /// The next number; none at the end.
  std::optional<WrittenNumber> next() {
    for (; at_ < text_.size(); ++at_) {
      if (!starts_number()) continue;
      const bool negative = is_negative();
      WrittenNumber number{.decimal = read_decimal(negative), .denominator = "1"};
      if (!read_denominator(number)) continue;
      return number;
    }
    return std::nullopt;
  }

 private:
  char look(size_t at) const { return at < text_.size() ? text_[at] : '\0'; }
  char before(size_t at) const { return at > 0 ? text_[at - 1] : '\0'; }

  bool starts_number() const {
    if (is_digit(look(at_))) return true;
    return look(at_) == '.' && is_digit(look(at_ + 1)) && !is_digit(before(at_));
  }

  bool is_negative() const {
    size_t sign = at_;
    if (before(sign) == '$' && before(sign - 1) == '-') --sign;
    if (before(sign) != '-') return false;
    const char left = before(sign - 1);
    return !is_digit(left) && !is_letter(left) && left != ')' && left != ']' && left != '}';
  }

  std::string read_digits() {
    const size_t begin = at_;
    while (is_digit(look(at_))) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  /// Whether a comma here separates thousands: exactly three digits follow.
  bool at_thousands() const {
    return look(at_) == ',' && is_digit(look(at_ + 1)) && is_digit(look(at_ + 2)) &&
           is_digit(look(at_ + 3)) && !is_digit(look(at_ + 4));
  }

  std::string read_decimal(bool negative) {
    std::string whole = read_digits();
    if (!whole.empty() && whole.size() <= 3) {
      while (at_thousands()) {
        ++at_;
        whole += read_digits();
      }
    }
    std::string fraction;
    if (look(at_) == '.' && is_digit(look(at_ + 1))) {
      ++at_;
      fraction = read_digits();
    }
    whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size()));
    fraction.erase(fraction.find_last_not_of('0') + 1);
    if (whole.empty() && fraction.empty()) return "0";
    std::string decimal = negative ? "-" : "";
    decimal += whole.empty() ? "0" : whole;
    if (!fraction.empty()) decimal += "." + fraction;
    return decimal;
  }

  /// False when the denominator is zero: then this is no number.
  bool read_denominator(WrittenNumber& number) {
    if (look(at_) != '/' || !is_digit(look(at_ + 1))) return true;
    ++at_;
    std::string digits = read_digits();
    digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
    if (digits.empty()) return false;
    number.denominator = std::move(digits);
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
};

std::optional<WrittenNumber> first_number(std::string_view text) {
  const std::string spelled = plain(text);
  return NumberScanner(spelled).next();
}

std::optional<WrittenNumber> last_number(std::string_view text) {
  const std::string spelled = plain(text);
  NumberScanner scanner(spelled);
  std::optional<WrittenNumber> last;
  while (auto number = scanner.next()) last = std::move(number);
  return last;
}

}  // namespace

double WrittenNumber::value() const {
  return std::strtod(decimal.c_str(), nullptr) / std::strtod(denominator.c_str(), nullptr);
}

bool operator==(const WrittenNumber& a, const WrittenNumber& b) {
  if (a.denominator == b.denominator) return a.decimal == b.decimal;
  const double x = a.value(), y = b.value();
  return std::abs(x - y) <= 1e-12 * std::max(std::abs(x), std::abs(y));
}

std::optional<WrittenNumber> final_number(std::string_view text) {
  constexpr std::string_view kMark = "####", kBox = "\\boxed{";
  if (const size_t mark = text.rfind(kMark); mark != std::string_view::npos) {
    const std::string_view rest = text.substr(mark + kMark.size());
    return first_number(rest.substr(0, rest.find('\n')));
  }
  if (const size_t box = text.rfind(kBox); box != std::string_view::npos) {
    const size_t open = box + kBox.size() - 1;
    const size_t end = past_closing_brace(text, open);
    if (end == std::string_view::npos) return std::nullopt;  // cut off: the number may be, too
    return last_number(text.substr(open + 1, end - open - 2));
  }
  return last_number(text);
}

bool same_final_number(std::string_view response, std::string_view label) {
  const auto wanted = final_number(label);
  const auto given = wanted ? final_number(response) : std::nullopt;
  return given && *given == *wanted;
}

}  // namespace miles
