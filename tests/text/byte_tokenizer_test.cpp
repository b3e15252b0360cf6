#include "text/byte_tokenizer.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "tests/support/shared.h"
#include "text/tokenizer.h"

namespace miles {
namespace {

TEST(ByteTokenizer, LoadsBackAsItself) {
  const test::ScratchDir dir;
  write_file_atomically(dir / "tokenizer.json", byte_tokenizer_json());
  write_file_atomically(dir / "tokenizer_config.json", byte_tokenizer_config_json());
  const Tokenizer loaded = Tokenizer::load(dir.path());
  const Tokenizer bytes = Tokenizer::bytes();
  EXPECT_EQ(loaded.vocab_size(), bytes.vocab_size());
  EXPECT_EQ(loaded.bos_id(), bytes.bos_id());
  EXPECT_EQ(loaded.eos_id(), bytes.eos_id());
  for (const std::string text : {"12+34=", "", "naïve  日本\n\t🙂", "<eos>x"}) {
    EXPECT_EQ(loaded.encode(text), bytes.encode(text)) << text;
    EXPECT_EQ(loaded.decode(loaded.encode(text)), bytes.decode(bytes.encode(text))) << text;
  }
}

}  // namespace
}  // namespace miles
