#include "text/byte_tokenizer.h"

#include <nlohmann/json.hpp>

#include "text/byte_level.h"

namespace miles {

std::string byte_tokenizer_json() {
  using json = nlohmann::ordered_json;
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    append_byte_level(std::string(1, static_cast<char>(byte)), token);
    vocab[token] = byte;
  }
  json added = json::array();
  for (const auto& [content, id] : {std::pair{"<bos>", 256}, std::pair{"<eos>", 257}}) {
    vocab[content] = id;
    added.push_back({{"id", id},
                     {"content", content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", false}};
  const json tokenizer = {{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens", added},
                          {"normalizer", nullptr},
                          {"pre_tokenizer", byte_level},
                          {"post_processor", nullptr},
                          {"decoder", byte_level},
                          {"model",
                           {{"type", "BPE"},
                            {"dropout", nullptr},
                            {"unk_token", nullptr},
                            {"continuing_subword_prefix", nullptr},
                            {"end_of_word_suffix", nullptr},
                            {"fuse_unk", false},
                            {"byte_fallback", false},
                            {"ignore_merges", false},
                            {"vocab", vocab},
                            {"merges", json::array()}}}};
  return tokenizer.dump(1) + "\n";
}

std::string byte_tokenizer_config_json() {
  const nlohmann::ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                         {"bos_token", "<bos>"},
                                         {"eos_token", "<eos>"},
                                         {"add_bos_token", true},
                                         {"clean_up_tokenization_spaces", false}};
  return config.dump(1) + "\n";
}

}  // namespace miles
