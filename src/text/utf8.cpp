#include "text/utf8.h"

#include <utf8proc.h>

#include <cstdint>

namespace miles {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

/// What a lead byte promises (Unicode 15, table 3-7).
struct Lead {
  size_t length;      // bytes of the whole character; 0: not a lead byte
  uint8_t low, high;  // allowed range of the second byte
  uint8_t payload;    // the lead byte's own bits of the code point
};

Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0, byte};
  if (byte < 0xC2) return {0, 0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF, static_cast<uint8_t>(byte & 0x1F)};
  if (byte < 0xF0) {
    const uint8_t low = byte == 0xE0 ? 0xA0 : 0x80;   // no overlong forms
    const uint8_t high = byte == 0xED ? 0x9F : 0xBF;  // no surrogates
    return {3, low, high, static_cast<uint8_t>(byte & 0x0F)};
  }
  if (byte < 0xF5) {
    const uint8_t low = byte == 0xF0 ? 0x90 : 0x80;
    const uint8_t high = byte == 0xF4 ? 0x8F : 0xBF;  // nothing beyond U+10FFFF
    return {4, low, high, static_cast<uint8_t>(byte & 0x07)};
  }
  return {0, 0, 0, 0};
}

/// The end of the longest valid stretch that starts at `at`.
size_t valid_until(std::string_view text, size_t at) {
  while (at < text.size()) {
    if (static_cast<uint8_t>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const Utf8Step step = utf8_step(text, at);
    if (step.kind != Utf8Step::Kind::character) break;
    at += step.length;
  }
  return at;
}

}  // namespace

Utf8Step utf8_step(std::string_view text, size_t at) {
  const Lead lead = lead_of(static_cast<uint8_t>(text[at]));
  if (lead.length == 0) return {Utf8Step::Kind::invalid, 1, 0xFFFD};
  char32_t code_point = lead.payload;
  for (size_t i = 1; i < lead.length; ++i) {
    if (at + i == text.size()) return {Utf8Step::Kind::truncated, i, 0xFFFD};
    const auto byte = static_cast<uint8_t>(text[at + i]);
    const uint8_t low = i == 1 ? lead.low : 0x80;
    const uint8_t high = i == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) return {Utf8Step::Kind::invalid, i, 0xFFFD};
    code_point = code_point << 6 | (byte & 0x3F);
  }
  return {Utf8Step::Kind::character, lead.length, code_point};
}

char32_t code_point_at(std::string_view text, size_t at) {
  return utf8_step(text, at).code_point;
}

size_t previous_character(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

void append_utf8(char32_t code_point, std::string& out) {
  const auto trail = [&](int shift) {
    return static_cast<char>(0x80 | ((code_point >> shift) & 0x3F));
  };
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    out += {static_cast<char>(0xC0 | code_point >> 6), trail(0)};
  } else if (code_point < 0x10000) {
    out += {static_cast<char>(0xE0 | code_point >> 12), trail(6), trail(0)};
  } else {
    out += {static_cast<char>(0xF0 | code_point >> 18), trail(12), trail(6), trail(0)};
  }
}

bool is_valid_utf8(std::string_view text) {
  return valid_until(text, 0) == text.size();
}

std::string repair_utf8(std::string_view text) {
  std::string out;
  Utf8Repair repair;
  repair.push(text, out);
  repair.finish(out);
  return out;
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_word_character(char32_t c) {
  if (c == 0x200C || c == 0x200D) return true;  // Join_Control
  // Symbols that are Alphabetic all the same: circled, squared and parenthesised letters.
  if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
      (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189))
    return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

void Utf8Repair::push(std::string_view bytes, std::string& out) {
  std::string joined;
  if (!pending_.empty()) {
    joined = std::move(pending_).append(bytes);
    pending_.clear();
    bytes = joined;
  }
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = valid_until(bytes, at);
    out += bytes.substr(at, end - at);
    if (end == bytes.size()) return;
    const Utf8Step step = utf8_step(bytes, end);
    if (step.kind == Utf8Step::Kind::truncated) {
      pending_ = bytes.substr(end);
      return;
    }
    out += kReplacement;
    at = end + step.length;
  }
}

void Utf8Repair::finish(std::string& out) {
  if (!pending_.empty()) out += kReplacement;
  pending_.clear();
}

}  // namespace miles
