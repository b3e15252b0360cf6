#include "hub/json_file.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/file.h"

namespace miles {
namespace {

/// "line 3, column 14" of a byte, counted from 1 as the parser does.
std::string place_of(std::string_view text, size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte, text.size() + 1) - (byte > 0));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t newline = before.rfind('\n');
  const size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
  return fmt::format("line {}, column {}", line, before.size() - line_start + 1);
}

/// A value for a message: short, whatever it holds.
std::string excerpt(const nlohmann::json& value) {
  constexpr size_t kMost = 60;  // bytes
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kMost) text = text.substr(0, kMost) + "…";
  return text;
}

}  // namespace

nlohmann::json parse_json_object(std::string_view text, const std::string& where) {
  std::set<std::string> keys;
  const auto refuse_repeated_key = [&](int depth, nlohmann::json::parse_event_t event,
                                       nlohmann::json& parsed) {
    if (depth == 1 && event == nlohmann::json::parse_event_t::key)
      if (const auto& key = parsed.get_ref<const std::string&>(); !keys.insert(key).second)
        fail(ErrorCode::data, "{}: the key '{}' is there twice; remove one", where, key);
    return true;
  };
  nlohmann::json value;
  try {
    value = nlohmann::json::parse(text, refuse_repeated_key);
  } catch (const nlohmann::json::parse_error& error) {
    fail(ErrorCode::data, "{}: {} (byte {}): not valid JSON; the file may be cut short or damaged",
         where, place_of(text, error.byte), error.byte);
  } catch (const nlohmann::json::exception& error) {  // a number beyond a double's range
    fail(ErrorCode::data, "{}: not valid JSON: {}", where, error.what());
  }
  if (!value.is_object())
    fail(ErrorCode::data, "{}: expected a JSON object, found {}", where, excerpt(value));
  return value;
}

nlohmann::json read_json_object(const std::filesystem::path& path) {
  return parse_json_object(read_file(path), path.string());
}

JsonFields::JsonFields(const nlohmann::json& object, std::string where)
    : object_(&object), where_(std::move(where)) {
  MILES_CHECK(object.is_object(), "{}: not an object", where_);
}

const nlohmann::json* JsonFields::find(const char* key) const {
  const auto found = object_->find(key);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

bool JsonFields::has(const char* key) const {
  return find(key) != nullptr;
}

std::optional<int64_t> JsonFields::find_integer(const char* key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  // An unsigned beyond int64 would turn negative in silence.
  if (!value->is_number_integer() || (value->is_number_unsigned() && value->get<int64_t>() < 0))
    refuse(key, "an integer");
  return value->get<int64_t>();
}

std::optional<double> JsonFields::find_number(const char* key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) refuse(key, "a number");
  return value->get<double>();
}

std::optional<bool> JsonFields::find_flag(const char* key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) refuse(key, "true or false");
  return value->get<bool>();
}

std::optional<std::string> JsonFields::find_text(const char* key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) refuse(key, "a string");
  return value->get<std::string>();
}

std::optional<JsonFields> JsonFields::find_object(const char* key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) refuse(key, "an object");
  return JsonFields(*value, fmt::format("{}: {}", where_, key));
}

int64_t JsonFields::integer(const char* key) const {
  if (const auto value = find_integer(key)) return *value;
  missing(key);
}

double JsonFields::number(const char* key) const {
  if (const auto value = find_number(key)) return *value;
  missing(key);
}

std::string JsonFields::text(const char* key) const {
  if (auto value = find_text(key)) return *std::move(value);
  missing(key);
}

void JsonFields::refuse(const char* key, const char* expected) const {
  fail(ErrorCode::data, "{}: {} is {}, expected {}", where_, key, excerpt(*find(key)), expected);
}

void JsonFields::missing(const char* key) const {
  fail(ErrorCode::data, "{}: {} is missing", where_, key);
}

}  // namespace miles
