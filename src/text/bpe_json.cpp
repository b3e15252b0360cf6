// Reading a BPE model from tokenizer.json.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "hub/json_file.h"
#include "text/bpe.h"

namespace miles {
namespace {

using nlohmann::json;

// An id beyond this is a damaged file, not a vocabulary.
constexpr int64_t kLargestId = (1 << 21) - 1;

std::vector<std::string> read_vocabulary(const json* vocab, const std::string& where) {
  if (vocab == nullptr || !vocab->is_object())
    fail(ErrorCode::data, "{}: vocab is missing or is not an object of token: id", where);
  std::vector<std::string> tokens(vocab->size());
  for (const auto& [token, id] : vocab->items()) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > kLargestId)
      fail(ErrorCode::data, "{}: vocab['{}'] is {}, expected an id of 0 to {}", where, token,
           id.dump(), kLargestId);
    const auto index = id.get<size_t>();
    if (index >= tokens.size()) tokens.resize(index + 1);
    if (!tokens[index].empty())
      fail(ErrorCode::data, "{}: vocab gives '{}' and '{}' the same id {}", where, tokens[index],
           token, index);
    tokens[index] = token;
  }
  return tokens;
}

std::pair<std::string, std::string> read_merge(const json& merge, const std::string& where,
                                               size_t rank) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos)
      return {text.substr(0, space), text.substr(space + 1)};
  }
  fail(ErrorCode::data, "{}: merges[{}] is {}, expected \"left right\" or [\"left\", \"right\"]",
       where, rank, merge.dump());
}

std::vector<std::pair<std::string, std::string>> read_merges(const json* merges,
                                                             const std::string& where) {
  if (merges == nullptr || !merges->is_array())
    fail(ErrorCode::data, "{}: merges is missing or is not an array", where);
  std::vector<std::pair<std::string, std::string>> pairs;
  pairs.reserve(merges->size());
  for (size_t rank = 0; rank < merges->size(); ++rank)
    pairs.push_back(read_merge((*merges)[rank], where, rank));
  return pairs;
}

}  // namespace

Bpe Bpe::from_json(const json& model, const std::string& where) {
  if (!model.is_object()) fail(ErrorCode::data, "{}: model is missing or no object", where);
  const JsonFields fields(model, where);
  // The oldest files do not name the type of a BPE model.
  const std::string type = fields.find_text("type").value_or("BPE");
  if (type != "BPE")
    fail(ErrorCode::data, "{}: the model type '{}' is not supported; supported is BPE", where,
         type);
  if (fields.find_number("dropout").value_or(0) != 0)
    fail(ErrorCode::data, "{}: dropout is {}; encoding must be repeatable: set it to null", where,
         fields.number("dropout"));
  BpeParts parts;
  parts.tokens = read_vocabulary(fields.find("vocab"), where);
  parts.merges = read_merges(fields.find("merges"), where);
  parts.unknown = fields.find_text("unk_token").value_or("");
  parts.continuing_prefix = fields.find_text("continuing_subword_prefix").value_or("");
  parts.word_suffix = fields.find_text("end_of_word_suffix").value_or("");
  parts.fuse_unknown = fields.find_flag("fuse_unk").value_or(false);
  parts.byte_fallback = fields.find_flag("byte_fallback").value_or(false);
  parts.ignore_merges = fields.find_flag("ignore_merges").value_or(false);
  return Bpe(std::move(parts), where);
}

}  // namespace miles
