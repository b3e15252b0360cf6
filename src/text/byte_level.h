// The byte-level alphabet: one printable character for each byte, so that byte-level BPE
// vocabularies are text. Bytes that are printable in Latin-1 stand for themselves, the other 68 for
// U+0100 onwards. Source: GPT-2 (Radford et al. 2019); Hugging Face's "ByteLevel".
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace miles {

/// The character of each byte.
const std::array<char32_t, 256>& byte_level_alphabet();

/// The byte of a character, or -1 where it is not in the alphabet.
int byte_of_character(char32_t character);

/// Appends the characters of `bytes`, as UTF-8.
void append_byte_level(std::string_view bytes, std::string& out);

}  // namespace miles
