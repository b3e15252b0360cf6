// What a tokenizer consists of, in the order in which a text passes through.
#pragma once

#include <optional>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pre_tokenizer.h"
#include "text/special_frame.h"
#include "text/text_normalizer.h"
#include "text/token_decoder.h"

namespace miles {

struct TokenizerParts {
  AddedTokens added;
  TextNormalizer normalizer;
  PreTokenizer pre_tokenizer;
  Bpe model;
  SpecialFrame frame;
  TokenDecoder decoder;
  std::optional<int32_t> bos;  // id
  std::optional<int32_t> eos;  // id

  /// The id of an added token or one of the model's.
  std::optional<int32_t> find(std::string_view token) const {
    if (const AddedToken* known = added.find(token)) return known->id;
    return model.find(token);
  }
};

}  // namespace miles
