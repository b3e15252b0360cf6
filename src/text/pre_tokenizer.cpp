#include "text/pre_tokenizer.h"

#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "hub/json_file.h"
#include "text/byte_level.h"

namespace miles {
namespace {

// What "ByteLevel" splits by unless told otherwise: GPT-2's words.
constexpr const char* kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// A stretch of a word, and whether the pattern matched it.
struct Stretch {
  TextSpan span;
  bool matched = false;
};

/// The matches and what is between them; together they cover the word.
std::vector<Stretch> stretches_of(std::string_view word, const TextPattern& pattern, bool invert) {
  std::vector<Stretch> stretches;
  size_t done = 0;
  for (const TextSpan& match : pattern.find_all(word)) {
    if (done < match.begin) stretches.push_back({{done, match.begin}, invert});
    stretches.push_back({match, !invert});
    done = match.end;
  }
  if (done < word.size()) stretches.push_back({{done, word.size()}, invert});
  return stretches;
}

/// Joins each matched stretch with the unmatched one before it.
std::vector<Stretch> merge_with_previous(const std::vector<Stretch>& stretches) {
  std::vector<Stretch> merged;
  bool previous_matched = false;
  for (const Stretch& stretch : stretches) {
    if (stretch.matched && !previous_matched && !merged.empty()) {
      merged.back().span.end = stretch.span.end;
    } else {
      merged.push_back(stretch);
    }
    previous_matched = stretch.matched;
  }
  return merged;
}

/// Joins each matched stretch with the unmatched one after it.
std::vector<Stretch> merge_with_next(const std::vector<Stretch>& stretches) {
  std::vector<Stretch> merged;
  for (size_t i = 0; i < stretches.size(); ++i) {
    merged.push_back(stretches[i]);
    if (stretches[i].matched && i + 1 < stretches.size() && !stretches[i + 1].matched)
      merged.back().span.end = stretches[++i].span.end;
  }
  return merged;
}

/// Joins neighbours that are alike.
std::vector<Stretch> merge_alike(const std::vector<Stretch>& stretches) {
  std::vector<Stretch> merged;
  for (const Stretch& stretch : stretches) {
    if (!merged.empty() && merged.back().matched == stretch.matched) {
      merged.back().span.end = stretch.span.end;
    } else {
      merged.push_back(stretch);
    }
  }
  return merged;
}

std::vector<Stretch> apply_behavior(std::vector<Stretch> stretches, SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::removed:
      std::erase_if(stretches, [](const Stretch& stretch) { return stretch.matched; });
      return stretches;
    case SplitBehavior::isolated:
      return stretches;
    case SplitBehavior::contiguous:
      return merge_alike(stretches);
    case SplitBehavior::merged_with_previous:
      return merge_with_previous(stretches);
    case SplitBehavior::merged_with_next:
      return merge_with_next(stretches);
  }
  return stretches;
}

SplitBehavior behavior_of(const std::string& name, const std::string& where) {
  static const std::map<std::string, SplitBehavior> kBehaviors = {
      {"Removed", SplitBehavior::removed},
      {"Isolated", SplitBehavior::isolated},
      {"Contiguous", SplitBehavior::contiguous},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next}};
  const auto found = kBehaviors.find(name);
  if (found == kBehaviors.end())
    fail(ErrorCode::data,
         "{}: behavior is '{}', expected Removed, Isolated, Contiguous, MergedWithPrevious or "
         "MergedWithNext",
         where, name);
  return found->second;
}

/// Writes every word anew: `rewrite(word, i, out)` appends word i's new text to `out`.
template <class Rewrite>
void rewrite_words(WordSplit& split, Rewrite rewrite) {
  std::string text;
  text.reserve(split.text.size() * 2);
  for (size_t i = 0; i < split.words.size(); ++i) {
    const size_t begin = text.size();
    rewrite(split.word(i), i, text);
    split.words[i] = {begin, text.size()};
  }
  split.text = std::move(text);
}

std::string replace_spaces(std::string_view word, std::string_view replacement) {
  std::string out;
  for (const char c : word) {
    if (c == ' ') {
      out += replacement;
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

PreTokenizer PreTokenizer::from_json(const nlohmann::json& pre_tokenizer,
                                     const std::string& where) {
  PreTokenizer made;
  if (!pre_tokenizer.is_null()) made.add(pre_tokenizer, where);
  return made;
}

void PreTokenizer::add(const nlohmann::json& pre_tokenizer, const std::string& where) {
  if (!pre_tokenizer.is_object())
    fail(ErrorCode::data, "{}: expected an object, found {}", where, pre_tokenizer.dump());
  const JsonFields fields(pre_tokenizer, where);
  const std::string type = fields.text("type");
  if (type == "Split") {
    add_split(pre_tokenizer, where);
  } else if (type == "ByteLevel") {
    add_byte_level(pre_tokenizer, where);
  } else if (type == "Metaspace") {
    add_metaspace(pre_tokenizer, where);
  } else if (type == "Digits") {
    const bool individual = fields.find_flag("individual_digits").value_or(false);
    steps_.push_back(
        Split{.pattern = TextPattern::regex(R"(\p{N})", where),
              .behavior = individual ? SplitBehavior::isolated : SplitBehavior::contiguous});
  } else if (type == "WhitespaceSplit") {
    steps_.push_back(
        Split{.pattern = TextPattern::regex(R"(\s)", where), .behavior = SplitBehavior::removed});
  } else if (type == "Sequence") {
    const nlohmann::json* parts = fields.find("pretokenizers");
    if (parts == nullptr || !parts->is_array())
      fail(ErrorCode::data, "{}: a Sequence needs an array 'pretokenizers'", where);
    for (size_t i = 0; i < parts->size(); ++i)
      add((*parts)[i], fmt::format("{}: pretokenizers[{}]", where, i));
  } else {
    fail(ErrorCode::data,
         "{}: the pre-tokenizer type '{}' is not supported; supported are Split, ByteLevel, "
         "Metaspace, Digits, WhitespaceSplit and Sequence",
         where, type);
  }
}

void PreTokenizer::add_split(const nlohmann::json& split, const std::string& where) {
  const JsonFields fields(split, where);
  const nlohmann::json* pattern = fields.find("pattern");
  steps_.push_back(
      Split{.pattern = TextPattern::from_json(pattern ? *pattern : nlohmann::json(), where),
            .behavior = behavior_of(fields.text("behavior"), where),
            .invert = fields.find_flag("invert").value_or(false)});
}

void PreTokenizer::add_byte_level(const nlohmann::json& byte_level, const std::string& where) {
  const JsonFields fields(byte_level, where);
  if (fields.find_flag("add_prefix_space").value_or(true)) steps_.push_back(PrefixSpace{});
  if (fields.find_flag("use_regex").value_or(true))
    steps_.push_back(Split{.pattern = TextPattern::regex(kGpt2Words, where)});
  steps_.push_back(BytesToCharacters{});
}

void PreTokenizer::add_metaspace(const nlohmann::json& metaspace, const std::string& where) {
  static const std::map<std::string, PrependScheme> kSchemes = {{"always", PrependScheme::always},
                                                                {"first", PrependScheme::first},
                                                                {"never", PrependScheme::never}};
  const JsonFields fields(metaspace, where);
  const std::string name = fields.find_text("prepend_scheme").value_or("always");
  const auto scheme = kSchemes.find(name);
  if (scheme == kSchemes.end())
    fail(ErrorCode::data, "{}: prepend_scheme is '{}', expected always, first or never", where,
         name);
  // Files from before there were schemes say it with add_prefix_space.
  const bool prepends = fields.find_flag("add_prefix_space").value_or(true);
  const std::string replacement = fields.text("replacement");
  steps_.push_back(Metaspace{.replacement = replacement,
                             .prepend = prepends ? scheme->second : PrependScheme::never});
  if (fields.find_flag("split").value_or(true))
    steps_.push_back(Split{.pattern = TextPattern::literal(replacement),
                           .behavior = SplitBehavior::merged_with_next});
}

WordSplit PreTokenizer::apply(std::string text, bool at_start) const {
  WordSplit split{.text = std::move(text), .words = {}, .at_start = at_start};
  if (!split.text.empty()) split.words.push_back({0, split.text.size()});
  for (const Step& step : steps_) std::visit([&](const auto& known) { run(known, split); }, step);
  return split;
}

void PreTokenizer::run(const Split& step, WordSplit& split) {
  std::vector<TextSpan> words;
  for (size_t i = 0; i < split.words.size(); ++i) {
    const size_t begin = split.words[i].begin;
    for (const Stretch& stretch :
         apply_behavior(stretches_of(split.word(i), step.pattern, step.invert), step.behavior))
      if (stretch.span.begin < stretch.span.end)
        words.push_back({begin + stretch.span.begin, begin + stretch.span.end});
  }
  if (!words.empty() && words.front().begin != split.words.front().begin) split.at_start = false;
  split.words = std::move(words);
}

void PreTokenizer::run(const PrefixSpace&, WordSplit& split) {
  rewrite_words(split, [](std::string_view word, size_t, std::string& out) {
    if (!word.starts_with(' ')) out += ' ';
    out += word;
  });
}

void PreTokenizer::run(const BytesToCharacters&, WordSplit& split) {
  rewrite_words(
      split, [](std::string_view word, size_t, std::string& out) { append_byte_level(word, out); });
}

void PreTokenizer::run(const Metaspace& step, WordSplit& split) {
  rewrite_words(split, [&](std::string_view word, size_t i, std::string& out) {
    const std::string replaced = replace_spaces(word, step.replacement);
    const bool wants = step.prepend == PrependScheme::always ||
                       (step.prepend == PrependScheme::first && i == 0 && split.at_start);
    if (wants && !replaced.starts_with(step.replacement)) out += step.replacement;
    out += replaced;
  });
}

}  // namespace miles
