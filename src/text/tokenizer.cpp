#include "text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "text/tokenizer_parts.h"
#include "text/utf8.h"

namespace miles {

Tokenizer::Tokenizer(TokenizerParts parts)
    : parts_(std::make_unique<const TokenizerParts>(std::move(parts))) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

int32_t Tokenizer::vocab_size() const {
  int32_t size = parts_->model.size();
  for (const AddedToken& token : parts_->added.all()) size = std::max(size, token.id + 1);
  return size;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  std::string repaired;
  if (!is_valid_utf8(text)) text = repaired = repair_utf8(text);
  std::vector<int32_t> ids;
  for (const AddedSplit& split : parts_->added.split_raw(text)) {
    if (split.id) {
      ids.push_back(*split.id);
    } else {
      encode_stretch(text.substr(split.span.begin, split.span.end - split.span.begin),
                     split.span.begin == 0, ids);
    }
  }
  return options.add_special ? parts_->frame.around(std::move(ids)) : ids;
}

void Tokenizer::encode_stretch(std::string_view stretch, bool at_start,
                               std::vector<int32_t>& ids) const {
  const std::string normal = parts_->normalizer.apply(std::string(stretch));
  for (const AddedSplit& split : parts_->added.split_normalized(normal)) {
    if (split.id) {
      ids.push_back(*split.id);
      continue;
    }
    const WordSplit words = parts_->pre_tokenizer.apply(
        normal.substr(split.span.begin, split.span.end - split.span.begin),
        at_start && split.span.begin == 0);
    for (size_t i = 0; i < words.words.size(); ++i) parts_->model.encode(words.word(i), ids);
  }
}

std::vector<int32_t> Tokenizer::encode_prompt(std::string_view prompt) const {
  std::vector<int32_t> ids = encode(prompt);
  if (ids.empty() && bos_id()) ids.push_back(*bos_id());
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, DecodeOptions options) const {
  DecodeStream stream = decode_stream();
  std::string text;
  for (const int32_t id : ids) {
    if (options.skip_special && is_special(id)) continue;
    if (const auto token = text_of(id)) stream.push(*token, text);
  }
  stream.finish(text);
  return text;
}

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const {
  return parts_->find(token);
}

std::optional<std::string_view> Tokenizer::text_of(int32_t id) const {
  if (const AddedToken* token = parts_->added.find(id)) return token->pattern;
  return parts_->model.text_of(id);
}

std::optional<int32_t> Tokenizer::bos_id() const {
  return parts_->bos;
}

std::optional<int32_t> Tokenizer::eos_id() const {
  return parts_->eos;
}

bool Tokenizer::is_special(int32_t id) const {
  const AddedToken* token = parts_->added.find(id);
  return token != nullptr && token->special;
}

DecodeStream Tokenizer::decode_stream() const {
  return parts_->decoder.stream();
}

}  // namespace miles
