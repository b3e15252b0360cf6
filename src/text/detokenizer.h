// Incremental decoding: one id in, the text that is thereby decided out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace miles {

/// The decoding of one growing sequence. Text once given is never taken back and never ends within
/// a UTF-8 character; after flush() it equals Tokenizer::decode of all ids. What may still change
/// is held back: an unfinished character, and with byte fallback a run of byte tokens, until a
/// token of another kind.
class Detokenizer {
 public:
  /// `tokenizer` must outlive it.
  explicit Detokenizer(const Tokenizer& tokenizer, DecodeOptions options = {});

  /// Takes the next id; returns the text it added, valid until the next call.
  std::string_view push(int32_t id);

  /// The end: returns what was held back, valid until the next call. Nothing may be pushed after; a
  /// second flush adds nothing.
  std::string_view flush();

  /// All text so far.
  const std::string& text() const { return text_; }

 private:
  const Tokenizer* tokenizer_;  // not owned
  DecodeOptions options_;
  DecodeStream stream_;
  std::string text_;
  bool flushed_ = false;
};

}  // namespace miles
