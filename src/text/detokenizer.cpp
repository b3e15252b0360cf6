#include "text/detokenizer.h"

#include "base/error.h"

namespace miles {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, DecodeOptions options)
    : tokenizer_(&tokenizer), options_(options), stream_(tokenizer.decode_stream()) {}

std::string_view Detokenizer::push(int32_t id) {
  MILES_CHECK(!flushed_, "id {} after the end of the text", id);
  const size_t before = text_.size();
  const bool skip = options_.skip_special && tokenizer_->is_special(id);
  if (const auto token = skip ? std::nullopt : tokenizer_->text_of(id)) stream_.push(*token, text_);
  return std::string_view(text_).substr(before);
}

std::string_view Detokenizer::flush() {
  const size_t before = text_.size();
  if (!flushed_) stream_.finish(text_);
  flushed_ = true;
  return std::string_view(text_).substr(before);
}

}  // namespace miles
