#include "text/text_normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "hub/json_file.h"
#include "text/utf8.h"

namespace miles {
namespace {

/// U+0300 is the first character that NFC may change; in UTF-8 all before it start with a smaller
/// byte.
bool is_surely_nfc(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<uint8_t>(c) < 0xCC; }) &&
         !text.empty();
}

int combining_class(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

/// Appends a character's full decomposition.
void decompose(char32_t character, utf8proc_option_t options, std::vector<utf8proc_int32_t>& out) {
  utf8proc_int32_t parts[32];  // the longest decomposition has 18
  int boundary = 0;
  const utf8proc_ssize_t n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(character),
                                                     parts, 32, options, &boundary);
  MILES_CHECK(n >= 0 && n <= 32, "U+{:04X} has no decomposition: {}", +character, n);
  out.insert(out.end(), parts, parts + n);
}

/// Sorts each run of combining marks by class, keeping the order of equals (UAX 15, D109).
/// utf8proc would do it by insertion, quadratic in a run's length.
void order_marks(std::vector<utf8proc_int32_t>& characters) {
  for (auto it = characters.begin(); it != characters.end();) {
    if (combining_class(*it) == 0) {
      ++it;
      continue;
    }
    const auto end = std::find_if(it, characters.end(),
                                  [](utf8proc_int32_t c) { return combining_class(c) == 0; });
    if (end - it > 1) {
      std::stable_sort(it, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
        return combining_class(a) < combining_class(b);
      });
    }
    it = end;
  }
}

}  // namespace

std::string normalize_unicode(std::string_view text, UnicodeForm form) {
  if (form == UnicodeForm::nfc && is_surely_nfc(text)) return std::string(text);
  const bool compatible = form == UnicodeForm::nfkc || form == UnicodeForm::nfkd;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                      (compatible ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> characters;
  characters.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    decompose(step.code_point, options, characters);
    at += step.length;
  }
  order_marks(characters);
  if (form == UnicodeForm::nfc || form == UnicodeForm::nfkc) {
    const utf8proc_ssize_t n = utf8proc_normalize_utf32(
        characters.data(), static_cast<utf8proc_ssize_t>(characters.size()),
        static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    MILES_CHECK(n >= 0, "composing failed: {}", utf8proc_errmsg(n));
    characters.resize(static_cast<size_t>(n));
  }
  std::string out;
  out.reserve(text.size());
  for (const utf8proc_int32_t c : characters) append_utf8(static_cast<char32_t>(c), out);
  return out;
}

TextNormalizer TextNormalizer::from_json(const nlohmann::json& normalizer,
                                         const std::string& where) {
  TextNormalizer made;
  if (!normalizer.is_null()) made.add(normalizer, where);
  return made;
}

void TextNormalizer::add(const nlohmann::json& normalizer, const std::string& where) {
  static const std::map<std::string, UnicodeForm> kForms = {{"NFC", UnicodeForm::nfc},
                                                            {"NFD", UnicodeForm::nfd},
                                                            {"NFKC", UnicodeForm::nfkc},
                                                            {"NFKD", UnicodeForm::nfkd}};
  if (!normalizer.is_object())
    fail(ErrorCode::data, "{}: expected an object, found {}", where, normalizer.dump());
  const JsonFields fields(normalizer, where);
  const std::string type = fields.text("type");
  if (const auto form = kForms.find(type); form != kForms.end()) {
    steps_.push_back(form->second);
  } else if (type == "Prepend") {
    steps_.push_back(Prepend{fields.text("prepend")});
  } else if (type == "Replace") {
    const nlohmann::json* pattern = fields.find("pattern");
    steps_.push_back(
        Replace{TextPattern::from_json(pattern ? *pattern : nlohmann::json(), where + ": pattern"),
                fields.text("content")});
  } else if (type == "Sequence") {
    const nlohmann::json* parts = fields.find("normalizers");
    if (parts == nullptr || !parts->is_array())
      fail(ErrorCode::data, "{}: a Sequence needs an array 'normalizers'", where);
    for (size_t i = 0; i < parts->size(); ++i)
      add((*parts)[i], fmt::format("{}: normalizers[{}]", where, i));
  } else {
    fail(ErrorCode::data,
         "{}: the normalizer type '{}' is not supported; supported are NFC, NFD, NFKC, NFKD, "
         "Prepend, Replace and Sequence",
         where, type);
  }
}

std::string TextNormalizer::apply(std::string text) const {
  for (const Step& step : steps_) {
    if (const auto* form = std::get_if<UnicodeForm>(&step)) {
      text = normalize_unicode(text, *form);
    } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
      if (!text.empty()) text.insert(0, prepend->text);
    } else {
      const auto& replace = std::get<Replace>(step);
      text = replace.pattern.replace_all(text, replace.replacement);
    }
  }
  return text;
}

}  // namespace miles
