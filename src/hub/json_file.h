// JSON files and their fields, with errors that name the file, the place and the key.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace miles {

/// Parses `text`. Throws Error{data} "where: line L, column C: …" when it is not JSON, names a key
/// of its outermost object twice (most readers take the last one in silence), or is not an object.
nlohmann::json parse_json_object(std::string_view text, const std::string& where);

/// The same for a file's content.
nlohmann::json read_json_object(const std::filesystem::path& path);

/// Typed access to the fields of an object that must outlive it. A null counts as absent, as in
/// Hugging Face's files. A field of the wrong type throws Error{data} naming file, key and value.
class JsonFields {
 public:
  /// `where`: the file, and within it the path to the object, for messages.
  JsonFields(const nlohmann::json& object, std::string where);

  bool has(const char* key) const;
  std::optional<int64_t> find_integer(const char* key) const;
  std::optional<double> find_number(const char* key) const;
  std::optional<bool> find_flag(const char* key) const;
  std::optional<std::string> find_text(const char* key) const;
  /// The object under `key`; its `where` names the key.
  std::optional<JsonFields> find_object(const char* key) const;
  /// The value, or nothing where it is absent or null.
  const nlohmann::json* find(const char* key) const;

  /// The same, required: an absent field throws Error{data}.
  int64_t integer(const char* key) const;
  double number(const char* key) const;
  std::string text(const char* key) const;

  const std::string& where() const { return where_; }

 private:
  [[noreturn]] void refuse(const char* key, const char* expected) const;
  [[noreturn]] void missing(const char* key) const;

  const nlohmann::json* object_;  // not owned
  std::string where_;
};

}  // namespace miles
