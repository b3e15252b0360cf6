// The byte tokenizer as Hugging Face's files, so that a model that was trained with it is a
// directory that transformers loads, and that this program loads back.
#pragma once

#include <string>

namespace miles {

/// tokenizer.json: byte-level BPE without merges, id = byte, then "<bos>" (256) and "<eos>" (257).
std::string byte_tokenizer_json();

/// tokenizer_config.json beside it.
std::string byte_tokenizer_config_json();

}  // namespace miles
