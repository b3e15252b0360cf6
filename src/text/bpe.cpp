#include "text/bpe.h"

#include <algorithm>
#include <queue>

#include "base/error.h"
#include "text/utf8.h"

namespace miles {
namespace {

constexpr size_t kShortCharacters = 0x800;  // code points of one or two bytes

/// A word while it is merged: a doubly linked list within arrays.
struct Symbol {
  int32_t id;        // -1: merged into the one before it
  int32_t previous;  // index, -1 at the start
  int32_t next;      // index, -1 at the end
};

/// A possible merge of the symbol at `at` with the next one.
struct Candidate {
  int32_t rank;
  int32_t at;
  int32_t merged;

  /// std::priority_queue pops the greatest: the lowest rank, then the leftmost.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : at > other.at;
  }
};

std::vector<Symbol> link(const std::vector<int32_t>& ids) {
  const auto n = static_cast<int32_t>(ids.size());
  std::vector<Symbol> symbols(ids.size());
  for (int32_t i = 0; i < n; ++i) symbols[i] = {ids[i], i - 1, i + 1 < n ? i + 1 : -1};
  return symbols;
}

/// Joins the symbol at `at` with the next one.
void join(std::vector<Symbol>& symbols, int32_t at, int32_t merged) {
  Symbol& left = symbols[at];
  Symbol& right = symbols[left.next];
  left.id = merged;
  left.next = right.next;
  right.id = -1;
  if (left.next >= 0) symbols[left.next].previous = at;
}

}  // namespace

Bpe::Bpe(BpeParts parts, const std::string& where)
    : parts_(std::move(parts)), cache_(std::make_unique<WordCache>()) {
  index_tokens(where);
  index_merges(where);
}

void Bpe::index_tokens(const std::string& where) {
  ids_.reserve(parts_.tokens.size());
  for (size_t id = 0; id < parts_.tokens.size(); ++id)
    if (const std::string& token = parts_.tokens[id]; !token.empty())
      ids_.emplace(token, static_cast<int32_t>(id));
  short_characters_.assign(kShortCharacters, -1);
  for (char32_t c = 0; c < kShortCharacters; ++c) {
    std::string text;
    append_utf8(c, text);
    short_characters_[c] = find(text).value_or(-1);
  }
  for (int byte = 0; byte < 256; ++byte)
    byte_ids_.push_back(find(fmt::format("<0x{:02X}>", byte)).value_or(-1));
  if (!parts_.unknown.empty()) unknown_id_ = id_of(parts_.unknown, where + ": unk_token");
}

void Bpe::index_merges(const std::string& where) {
  merges_ = MergeTable(parts_.merges.size());
  const size_t prefix = parts_.continuing_prefix.size();
  for (size_t rank = 0; rank < parts_.merges.size(); ++rank) {
    const auto& [left, right] = parts_.merges[rank];
    const auto left_id = find(left);
    const auto right_id = find(right);
    const std::string joined = left + (right.size() >= prefix ? right.substr(prefix) : "");
    const auto joined_id = find(joined);
    if (!left_id || !right_id || !joined_id)
      fail(
          ErrorCode::data,
          "{}: merges[{}] joins '{}' and '{}', but the vocabulary has no '{}'; the file is damaged",
          where, rank, left, right,
          !left_id    ? left
          : !right_id ? right
                      : joined);
    merges_.set(*left_id, *right_id, {static_cast<int32_t>(rank), *joined_id});
  }
  parts_.merges = {};  // the table has them now
}

int32_t Bpe::id_of(std::string_view token, const std::string& place) const {
  if (const auto id = find(token)) return *id;
  fail(ErrorCode::data, "{}: the vocabulary has no token '{}'", place, token);
}

std::optional<int32_t> Bpe::find(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

std::optional<std::string_view> Bpe::text_of(int32_t id) const {
  if (id < 0 || id >= size() || parts_.tokens[id].empty()) return std::nullopt;
  return parts_.tokens[id];
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (word.empty()) return;
  if (parts_.ignore_merges) {
    if (const auto id = find(word)) {
      ids.push_back(*id);
      return;
    }
  }
  if (cache_->find(word, ids)) return;
  std::vector<int32_t> merged = characters_of(word);
  merge(merged);
  cache_->remember(word, merged.data(), merged.data() + merged.size());
  ids.insert(ids.end(), merged.begin(), merged.end());
}

std::optional<int32_t> Bpe::find_character(std::string_view word, size_t at, size_t length) const {
  const std::string_view character = word.substr(at, length);
  const bool first = at == 0;
  const bool last = at + length == word.size();
  if ((first || parts_.continuing_prefix.empty()) && (!last || parts_.word_suffix.empty())) {
    if (length > 2) return find(character);
    const int32_t id = short_characters_[code_point_at(word, at)];
    return id < 0 ? std::nullopt : std::optional(id);
  }
  std::string dressed = first ? "" : parts_.continuing_prefix;
  dressed += character;
  if (last) dressed += parts_.word_suffix;
  return find(dressed);
}

bool Bpe::append_bytes(std::string_view text, std::vector<int32_t>& ids) const {
  if (std::ranges::any_of(text, [&](char c) { return byte_ids_[static_cast<uint8_t>(c)] < 0; }))
    return false;
  for (const char c : text) ids.push_back(byte_ids_[static_cast<uint8_t>(c)]);
  return true;
}

std::vector<int32_t> Bpe::characters_of(std::string_view word) const {
  std::vector<int32_t> ids;
  ids.reserve(word.size());
  bool unknown_pending = false;  // one unknown token, written when it can grow no more
  const auto write_unknown = [&] {
    if (unknown_pending) ids.push_back(*unknown_id_);
    unknown_pending = false;
  };
  for (size_t at = 0; at < word.size();) {
    const size_t length = utf8_step(word, at).length;
    if (const auto id = find_character(word, at, length)) {
      write_unknown();
      ids.push_back(*id);
    } else if (!(parts_.byte_fallback && append_bytes(word.substr(at, length), ids)) &&
               unknown_id_) {
      if (!parts_.fuse_unknown) write_unknown();
      unknown_pending = true;
    }
    at += length;
  }
  write_unknown();
  return ids;
}

void Bpe::merge(std::vector<int32_t>& ids) const {
  std::vector<Symbol> symbols = link(ids);
  std::vector<Candidate> storage;
  storage.reserve(ids.size());
  const auto candidate = [&](int32_t at) -> std::optional<Candidate> {
    if (at < 0 || symbols[at].next < 0) return std::nullopt;
    const Merge* merge = merges_.find(symbols[at].id, symbols[symbols[at].next].id);
    if (merge == nullptr) return std::nullopt;
    return Candidate{merge->rank, at, merge->merged};
  };
  for (size_t i = 0; i < ids.size(); ++i)
    if (const auto found = candidate(static_cast<int32_t>(i))) storage.push_back(*found);
  std::priority_queue<Candidate> queue({}, std::move(storage));
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    if (symbols[top.at].id < 0) continue;
    // What was queued may have changed since: only a pair that still makes the same token counts.
    const auto now = candidate(top.at);
    if (!now || now->merged != top.merged) continue;
    join(symbols, top.at, top.merged);
    if (const auto found = candidate(symbols[top.at].previous)) queue.push(*found);
    if (const auto found = candidate(top.at)) queue.push(*found);
  }
  ids.clear();
  for (const Symbol& symbol : symbols)
    if (symbol.id >= 0) ids.push_back(symbol.id);
}

}  // namespace miles
