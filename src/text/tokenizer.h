// The tokenizer: text to token ids and back, as Hugging Face's `tokenizers` does for a
// tokenizer.json with a BPE model, byte-level (Qwen, Llama 3) or SentencePiece-style (Llama 2,
// Gemma).
//
// A text that is not UTF-8 is repaired first: each maximal invalid sequence becomes U+FFFD
// (text/utf8.h). Decoding follows the decoder chain alone; "clean_up_tokenization_spaces" is not
// applied.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/token_decoder.h"

namespace miles {

struct TokenizerParts;

struct EncodeOptions {
  bool add_special =
      true;  // what the post-processor puts around a text, such as BOS; never a second BOS
};

struct DecodeOptions {
  bool skip_special = false;  // leave out special tokens
};

/// Immutable; may be used by several threads at once.
class Tokenizer {
 public:
  /// Reads `tokenizer.json` of a Hugging Face directory and, where there is one,
  /// `tokenizer_config.json` for the names of BOS and EOS and for add_bos_token and add_eos_token,
  /// which, when given, override the post-processor. Throws Error{data} naming the file and what is
  /// wrong or not supported.
  static Tokenizer load(const std::filesystem::path& directory);

  /// A byte is a token: ids 0 … 255 are the bytes, 256 is "<bos>", 257 is "<eos>" (end of
  /// document). For models with random weights.
  static Tokenizer bytes();

  explicit Tokenizer(TokenizerParts parts);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// One more than the largest id; an embedding may have more rows.
  int32_t vocab_size() const;

  /// O(n log n) in the text's length.
  std::vector<int32_t> encode(std::string_view text, EncodeOptions options = {}) const;

  /// A prompt's ids. Where they would be none, BOS alone: a model that was trained to begin with it
  /// sees it.
  std::vector<int32_t> encode_prompt(std::string_view prompt) const;

  /// Valid UTF-8 always: bytes that do not make characters become U+FFFD. Ids without a token add
  /// nothing.
  std::string decode(std::span<const int32_t> ids, DecodeOptions options = {}) const;

  /// The id of a token, by its text in the vocabulary ("Ġthe", "<|im_end|>").
  std::optional<int32_t> id_of(std::string_view token) const;
  /// What decoding starts from: the text in the vocabulary, of an added token its pattern. Valid as
  /// long as the tokenizer; nothing where there is no such id.
  std::optional<std::string_view> text_of(int32_t id) const;

  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;

  /// Whether the id is a control token, which `skip_special` leaves out.
  bool is_special(int32_t id) const;

  /// A decoding that takes the tokens' texts one at a time; see text/detokenizer.h.
  DecodeStream decode_stream() const;

 private:
  void encode_stretch(std::string_view stretch, bool at_start, std::vector<int32_t>& ids) const;

  std::unique_ptr<const TokenizerParts> parts_;
};

}  // namespace miles
