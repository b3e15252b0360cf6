// Making a tokenizer: from the files of a Hugging Face directory, or of bytes.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "hub/json_file.h"
#include "text/byte_level.h"
#include "text/tokenizer.h"
#include "text/tokenizer_parts.h"
#include "text/utf8.h"

namespace miles {
namespace {

using nlohmann::json;

/// An added token that is also in the vocabulary must have the same id there, and no id may have
/// two texts.
void check_ids(const AddedTokens& added, const Bpe& model, const std::string& where) {
  for (const AddedToken& token : added.all()) {
    const int32_t expected = model.find(token.content).value_or(token.id);
    const auto text = model.text_of(token.id).value_or(token.content);
    if (expected != token.id || text != token.content)
      fail(ErrorCode::data,
           "{}: the added token '{}' has id {}, but in the vocabulary the text's id is {} and the "
           "id's text is '{}'",
           where, token.content, token.id, expected, text);
  }
}

TokenizerParts read_parts(const json& file, const std::string& where) {
  const auto value = [&](const char* key) { return file.value(key, json()); };
  const auto place = [&](const char* key) { return fmt::format("{}: {}", where, key); };
  TextNormalizer normalizer = TextNormalizer::from_json(value("normalizer"), place("normalizer"));
  const auto found = file.find("added_tokens");
  AddedTokens added(AddedTokens::read(found == file.end() || found->is_null() ? nullptr : &*found,
                                      place("added_tokens")),
                    normalizer, where);
  const auto model = file.find("model");  // big: not to be copied
  if (model == file.end()) fail(ErrorCode::data, "{}: model is missing", where);
  TokenizerParts parts{
      .added = std::move(added),
      .normalizer = std::move(normalizer),
      .pre_tokenizer = PreTokenizer::from_json(value("pre_tokenizer"), place("pre_tokenizer")),
      .model = Bpe::from_json(*model, place("model")),
      .frame = SpecialFrame::from_json(value("post_processor"), place("post_processor")),
      .decoder = TokenDecoder::from_json(value("decoder"), place("decoder")),
      .bos = std::nullopt,
      .eos = std::nullopt};
  check_ids(parts.added, parts.model, where);
  return parts;
}

/// The id of the token that `config` names under `key`: a text, or an object with its "content".
std::optional<int32_t> read_token(const json& config, const char* key, const TokenizerParts& parts,
                                  const std::string& where) {
  const JsonFields fields(config, where);
  const json* value = fields.find(key);
  if (value == nullptr) return std::nullopt;
  const std::string name =
      value->is_object() ? fields.find_object(key)->text("content") : fields.text(key);
  if (const auto id = parts.find(name)) return id;
  fail(ErrorCode::data, "{}: {} is '{}', which is no token of tokenizer.json beside it", where, key,
       name);
}

/// Makes one end of the frame as the flag wants it: with the token, or without.
void set_frame_end(std::vector<int32_t>& end, bool wanted, std::optional<int32_t> token) {
  if (!token) return;
  if (!wanted) {
    std::erase(end, *token);
  } else if (std::find(end.begin(), end.end(), *token) == end.end()) {
    end.push_back(*token);
  }
}

void apply_config(const json& config, const std::string& where, TokenizerParts& parts) {
  parts.bos = read_token(config, "bos_token", parts, where);
  parts.eos = read_token(config, "eos_token", parts, where);
  const JsonFields fields(config, where);
  if (const auto wanted = fields.find_flag("add_bos_token"))
    set_frame_end(parts.frame.prefix, *wanted, parts.bos);
  if (const auto wanted = fields.find_flag("add_eos_token"))
    set_frame_end(parts.frame.suffix, *wanted, parts.eos);
}

}  // namespace

Tokenizer Tokenizer::load(const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / "tokenizer.json";
  if (!std::filesystem::exists(file))
    fail(ErrorCode::data,
         "{}: no such file; a tokenizer needs tokenizer.json (Hugging Face's fast tokenizer)",
         file.string());
  TokenizerParts parts = read_parts(read_json_object(file), file.string());
  const std::filesystem::path config = directory / "tokenizer_config.json";
  if (std::filesystem::exists(config))
    apply_config(read_json_object(config), config.string(), parts);
  return Tokenizer(std::move(parts));
}

Tokenizer Tokenizer::bytes() {
  constexpr int32_t kBos = 256;
  constexpr int32_t kEos = 257;
  const std::string where = "byte tokenizer";
  BpeParts model;
  for (const char32_t character : byte_level_alphabet())
    append_utf8(character, model.tokens.emplace_back());
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return Tokenizer(
      TokenizerParts{.added = AddedTokens({{.id = kBos, .content = "<bos>", .special = true},
                                           {.id = kEos, .content = "<eos>", .special = true}},
                                          {}, where),
                     .normalizer = {},
                     .pre_tokenizer = PreTokenizer::from_json(byte_level, where),
                     .model = Bpe(std::move(model), where),
                     .frame = {.prefix = {kBos}, .suffix = {}},
                     .decoder = TokenDecoder::from_json(byte_level, where),
                     .bos = kBos,
                     .eos = kEos});
}

}  // namespace miles
