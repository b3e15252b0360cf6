// The decoder of a tokenizer.json: from the texts of tokens to text, one token at a time.
// Supported: Sequence, ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace.
//
// There is one implementation, and it streams: decoding everything is streaming everything, so the
// two cannot differ.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace miles {

/// One decoder of the chain, with what it holds back. Pieces go in and come out in order.
class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  /// Appends to `out` the pieces that are decided.
  virtual void push(std::string_view piece, std::vector<std::string>& out) = 0;
  /// Appends what was held back.
  virtual void finish(std::vector<std::string>&) {}
  /// The same stage, fresh.
  virtual std::unique_ptr<DecodeStage> fresh() const = 0;
};

/// The state of one decoding. Never emits half a UTF-8 character.
class DecodeStream {
 public:
  explicit DecodeStream(std::vector<std::unique_ptr<DecodeStage>> stages);

  /// Appends to `text` what is decided after this token.
  void push(std::string_view token, std::string& text);
  /// Appends what was held back; nothing may be pushed after.
  void finish(std::string& text);

 private:
  void run(size_t stage, std::vector<std::string> pieces, std::string& text);

  std::vector<std::unique_ptr<DecodeStage>> stages_;
};

/// Immutable; may be used by several threads at once.
class TokenDecoder {
 public:
  /// `decoder`: the value in tokenizer.json; null: tokens are joined by spaces.
  /// Throws Error{data} naming a type that is not supported, or an order that is not (after Fuse or
  /// ByteLevel, which join all tokens, only Strip can follow).
  static TokenDecoder from_json(const nlohmann::json& decoder, const std::string& where);

  DecodeStream stream() const;

 private:
  void add(const nlohmann::json& decoder, const std::string& where);

  std::vector<std::unique_ptr<DecodeStage>> stages_;
  bool joined_ = false;  // the tokens so far have become one text
};

}  // namespace miles
