#include "text/added_tokens.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "hub/json_file.h"
#include "text/utf8.h"

namespace miles {
namespace {

bool touches_word(std::string_view text, TextSpan span) {
  if (span.begin > 0 &&
      is_word_character(code_point_at(text, previous_character(text, span.begin))))
    return true;
  return span.end < text.size() && is_word_character(code_point_at(text, span.end));
}

/// The span with the white space before it, back to `limit` at most.
TextSpan widen_left(std::string_view text, TextSpan span, size_t limit) {
  while (span.begin > limit) {
    const size_t before = previous_character(text, span.begin);
    if (!is_white_space(code_point_at(text, before))) break;
    span.begin = before;
  }
  return span;
}

TextSpan widen_right(std::string_view text, TextSpan span) {
  while (span.end < text.size()) {
    const Utf8Step step = utf8_step(text, span.end);
    if (!is_white_space(step.code_point)) break;
    span.end += step.length;
  }
  return span;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const TextNormalizer& normalizer,
                         const std::string& where)
    : tokens_(std::move(tokens)) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    AddedToken& token = tokens_[i];
    token.pattern = token.normalized ? normalizer.apply(token.content) : token.content;
    if (const auto [other, fresh] = by_id_.emplace(token.id, i); !fresh)
      fail(ErrorCode::data, "{}: the added tokens '{}' and '{}' share the id {}", where,
           tokens_[other->second].content, token.content, token.id);
    if (!by_content_.emplace(token.content, i).second)
      fail(ErrorCode::data, "{}: the added token '{}' is there twice", where, token.content);
    (token.normalized ? normalized_ : raw_).add(token);
  }
}

std::vector<AddedToken> AddedTokens::read(const nlohmann::json* added, const std::string& where) {
  std::vector<AddedToken> tokens;
  if (added == nullptr) return tokens;
  if (!added->is_array()) fail(ErrorCode::data, "{}: expected an array", where);
  for (size_t i = 0; i < added->size(); ++i) {
    const std::string place = fmt::format("{}[{}]", where, i);
    if (!(*added)[i].is_object()) fail(ErrorCode::data, "{}: expected an object", place);
    const JsonFields fields((*added)[i], place);
    AddedToken token;
    token.content = fields.text("content");
    const int64_t id = fields.integer("id");
    if (id < 0 || id > INT32_MAX || token.content.empty())
      fail(ErrorCode::data, "{}: id {} with content '{}'; expected an id >= 0 and a text", place,
           id, token.content);
    token.id = static_cast<int32_t>(id);
    token.single_word = fields.find_flag("single_word").value_or(false);
    token.lstrip = fields.find_flag("lstrip").value_or(false);
    token.rstrip = fields.find_flag("rstrip").value_or(false);
    token.special = fields.find_flag("special").value_or(false);
    token.normalized = fields.find_flag("normalized").value_or(!token.special);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

const AddedToken* AddedTokens::find(int32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  const auto found = by_content_.find(std::string(content));
  return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

int32_t AddedTokens::Matcher::child(int32_t node, char byte) const {
  for (const auto& [key, index] : nodes_[node].next)
    if (key == byte) return index;
  return -1;
}

void AddedTokens::Matcher::add(const AddedToken& token) {
  if (token.pattern.empty()) return;
  int32_t node = 0;
  for (const char byte : token.pattern) {
    int32_t next = child(node, byte);
    if (next < 0) {
      next = static_cast<int32_t>(nodes_.size());
      nodes_[node].next.emplace_back(byte, next);
      nodes_.emplace_back();
    }
    node = next;
  }
  starts_[static_cast<uint8_t>(token.pattern.front())] = true;
  // Two tokens that normalize alike: the first one wins.
  if (nodes_[node].token < 0) nodes_[node].token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

AddedTokens::Matcher::Found AddedTokens::Matcher::longest_at(std::string_view text,
                                                             size_t at) const {
  Found found;
  int32_t node = 0;
  for (size_t i = at; i < text.size() && (node = child(node, text[i])) >= 0; ++i)
    if (nodes_[node].token >= 0) found = {nodes_[node].token, i + 1 - at};
  return found;
}

std::vector<AddedSplit> AddedTokens::Matcher::split(std::string_view text) const {
  std::vector<AddedSplit> splits;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const Found found = starts_[static_cast<uint8_t>(text[at])] ? longest_at(text, at) : Found();
    if (found.token < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[found.token];
    TextSpan span{at, at + found.length};
    at = span.end;
    if (token.single_word && touches_word(text, span)) continue;
    if (token.lstrip) span = widen_left(text, span, done);
    if (token.rstrip) span = widen_right(text, span);
    if (done < span.begin) splits.push_back({{done, span.begin}, std::nullopt});
    splits.push_back({span, token.id});
    done = span.end;
  }
  if (done < text.size()) splits.push_back({{done, text.size()}, std::nullopt});
  return splits;
}

}  // namespace miles
