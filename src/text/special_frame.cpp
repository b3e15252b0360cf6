#include "text/special_frame.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "hub/json_file.h"

namespace miles {
namespace {

using nlohmann::json;

/// The ids that the template's special token `name` stands for.
std::vector<int32_t> ids_of(const json& special_tokens, const std::string& name,
                            const std::string& where) {
  if (special_tokens.is_object() && special_tokens.contains(name)) {
    const json& entry = special_tokens[name];
    if (entry.is_object() && entry.contains("ids") && entry["ids"].is_array() &&
        std::ranges::all_of(entry["ids"], [](const json& id) { return id.is_number_unsigned(); }))
      return entry["ids"].get<std::vector<int32_t>>();
  }
  fail(ErrorCode::data, "{}: special_tokens has no ids for '{}', which the template names", where,
       name);
}

SpecialFrame read_template(const json& processor, const std::string& where) {
  const json single = processor.value("single", json());
  const json special_tokens = processor.value("special_tokens", json());
  if (!single.is_array()) fail(ErrorCode::data, "{}: single is missing or is no array", where);
  SpecialFrame frame;
  bool seen_text = false;
  for (const json& piece : single) {
    const bool special = piece.is_object() && piece.contains("SpecialToken");
    const json& body = special ? piece["SpecialToken"] : piece.value("Sequence", json());
    const std::string id = body.is_object() ? body.value("id", "") : "";
    if (special && !id.empty()) {
      for (const int32_t token : ids_of(special_tokens, id, where))
        (seen_text ? frame.suffix : frame.prefix).push_back(token);
    } else if (id == "A" && !seen_text) {
      seen_text = true;
    } else {
      fail(ErrorCode::data, "{}: single holds {}; expected special tokens and one Sequence A",
           where, piece.dump());
    }
  }
  return frame;
}

/// "cls" and "sep" are pairs [token, id].
int32_t read_pair(const json& processor, const char* key, const std::string& where) {
  const json pair = processor.value(key, json());
  if (!pair.is_array() || pair.size() != 2 || !pair[1].is_number_unsigned())
    fail(ErrorCode::data, "{}: {} is {}, expected [token, id]", where, key, pair.dump());
  return pair[1].get<int32_t>();
}

SpecialFrame read_sequence(const json& processor, const std::string& where) {
  const json parts = processor.value("processors", json());
  if (!parts.is_array()) fail(ErrorCode::data, "{}: processors is missing or is no array", where);
  SpecialFrame frame;
  for (size_t i = 0; i < parts.size(); ++i) {
    SpecialFrame outer =
        SpecialFrame::from_json(parts[i], fmt::format("{}: processors[{}]", where, i));
    frame.prefix.insert(frame.prefix.begin(), outer.prefix.begin(), outer.prefix.end());
    frame.suffix.insert(frame.suffix.end(), outer.suffix.begin(), outer.suffix.end());
  }
  return frame;
}

}  // namespace

SpecialFrame SpecialFrame::from_json(const json& processor, const std::string& where) {
  if (processor.is_null()) return {};
  if (!processor.is_object())
    fail(ErrorCode::data, "{}: expected an object, found {}", where, processor.dump());
  const std::string type = JsonFields(processor, where).text("type");
  if (type == "ByteLevel") return {};  // it mends offsets only
  if (type == "TemplateProcessing") return read_template(processor, where);
  if (type == "BertProcessing" || type == "RobertaProcessing")
    return {{read_pair(processor, "cls", where)}, {read_pair(processor, "sep", where)}};
  if (type == "Sequence") return read_sequence(processor, where);
  fail(ErrorCode::data,
       "{}: the post-processor type '{}' is not supported; supported are TemplateProcessing, "
       "BertProcessing, RobertaProcessing, ByteLevel and Sequence",
       where, type);
}

std::vector<int32_t> SpecialFrame::around(std::vector<int32_t> ids) const {
  const bool framed =
      ids.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), ids.begin());
  if (!framed) ids.insert(ids.begin(), prefix.begin(), prefix.end());
  ids.insert(ids.end(), suffix.begin(), suffix.end());
  return ids;
}

}  // namespace miles
