// What a tokenizer puts around a text: the post-processor of a tokenizer.json, for one sequence.
// Supported: TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel (adds nothing),
// Sequence.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace miles {

struct SpecialFrame {
  std::vector<int32_t> prefix;  // ids before the text, e.g. BOS
  std::vector<int32_t> suffix;  // ids after the text, e.g. EOS

  /// `post_processor`: the value in tokenizer.json, null for none.
  /// Throws Error{data} naming a type that is not supported.
  static SpecialFrame from_json(const nlohmann::json& post_processor, const std::string& where);

  /// Puts `ids` inside the frame. A prefix with which they already start is not put there again: a
  /// chat template that prints BOS must not lead to two.
  std::vector<int32_t> around(std::vector<int32_t> ids) const;
};

}  // namespace miles
