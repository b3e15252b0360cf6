#include "text/byte_level.h"

#include "text/utf8.h"

namespace miles {
namespace {

constexpr size_t kAlphabetEnd = 0x100 + 68;  // one past the last character of the alphabet

struct Tables {
  std::array<char32_t, 256> character_of_byte;
  std::array<int16_t, kAlphabetEnd> byte_of_character;
  std::array<std::string, 256> utf8_of_byte;
};

Tables make_tables() {
  Tables tables;
  tables.byte_of_character.fill(-1);
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    const char32_t character = printable ? static_cast<char32_t>(byte) : next++;
    tables.character_of_byte[byte] = character;
    tables.byte_of_character[character] = static_cast<int16_t>(byte);
    append_utf8(character, tables.utf8_of_byte[byte]);
  }
  return tables;
}

const Tables& tables() {
  static const Tables made = make_tables();
  return made;
}

}  // namespace

const std::array<char32_t, 256>& byte_level_alphabet() {
  return tables().character_of_byte;
}

int byte_of_character(char32_t character) {
  return character < kAlphabetEnd ? tables().byte_of_character[character] : -1;
}

void append_byte_level(std::string_view bytes, std::string& out) {
  const auto& utf8_of_byte = tables().utf8_of_byte;
  for (const char byte : bytes) out += utf8_of_byte[static_cast<uint8_t>(byte)];
}

}  // namespace miles
