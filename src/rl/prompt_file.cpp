#include "rl/prompt_file.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/file.h"

namespace miles {
namespace {

using nlohmann::json;

/// A path and the rows asked of it, as in Python's rows[begin:end].
struct SlicedPath {
  std::string path;
  std::optional<int64_t> begin;
  std::optional<int64_t> end;
};

/// One line that is not blank.
struct Line {
  std::string_view text;
  int64_t number = 0;  // in the file, from 1
};

std::optional<int64_t> parse_bound(std::string_view digits, const std::string& whole) {
  if (digits.empty()) return std::nullopt;
  int64_t value = 0;
  const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || rest != digits.data() + digits.size())
    fail(ErrorCode::flags, "{}: \"{}\" is no row number; write a slice as file.jsonl@[begin:end]",
         whole, digits);
  return value;
}

SlicedPath parse_path(const std::string& whole) {
  const size_t at = whole.rfind("@[");
  if (at == std::string::npos || whole.back() != ']')
    return {.path = whole, .begin = {}, .end = {}};
  const std::string_view slice = std::string_view(whole).substr(at + 2, whole.size() - at - 3);
  const size_t colon = slice.find(':');
  if (colon == std::string_view::npos)
    fail(ErrorCode::flags, "{}: the slice has no colon; write it as file.jsonl@[begin:end]", whole);
  return {.path = whole.substr(0, at),
          .begin = parse_bound(slice.substr(0, colon), whole),
          .end = parse_bound(slice.substr(colon + 1), whole)};
}

std::vector<Line> lines_of(std::string_view content) {
  constexpr std::string_view kBom = "\xEF\xBB\xBF";
  if (content.starts_with(kBom)) content.remove_prefix(kBom.size());
  std::vector<Line> lines;
  for (int64_t number = 1; !content.empty(); ++number) {
    const size_t end = std::min(content.find('\n'), content.size());
    const std::string_view text = content.substr(0, end);
    if (text.find_first_not_of(" \t\r") != std::string_view::npos) lines.push_back({text, number});
    content.remove_prefix(std::min(end + 1, content.size()));
  }
  return lines;
}

std::string keys_of(const json& row) {
  std::string keys;
  for (const auto& [key, value] : row.items()) keys += (keys.empty() ? "" : ", ") + key;
  return keys.empty() ? "none" : keys;
}

/// What follows the first `mark` in `text`; all of it where there is none.
std::string_view behind(std::string_view mark, std::string_view text) {
  const size_t found = text.find(mark);
  return found == std::string_view::npos ? text : text.substr(found + mark.size());
}

/// Reads the rows of one file; `place` of a line is "file:line".
class RowReader {
 public:
  RowReader(const DataOptions& options, std::string file)
      : options_(options), file_(std::move(file)) {}

  Prompt read(const Line& line, int64_t row_number) const {
    const std::string place = fmt::format("{}:{}", file_, line.number);
    const json row = parse(line.text, place);
    return {.text = text_of(row, place),
            .label = label_of(row, place),
            .metadata = metadata_of(row, place),
            .row = row_number};
  }

 private:
  static json parse(std::string_view text, const std::string& place) {
    try {
      json row = json::parse(text);
      if (!row.is_object())
        fail(ErrorCode::data, "{}: the line is a JSON {}; every line must be one object", place,
             row.type_name());
      return row;
    } catch (const json::parse_error& error) {
      // Its own words begin with a place in `text`, where it is always line 1.
      fail(ErrorCode::data, "{}:{}: not JSON: {}; every line must be one object", place, error.byte,
           behind(": ", error.what()));
    } catch (const json::exception& error) {  // a number beyond a double's range
      fail(ErrorCode::data, "{}: not JSON: {}; every line must be one object", place,
           behind("] ", error.what()));
    }
  }

  std::string text_of(const json& row, const std::string& place) const {
    const auto found = row.find(options_.input_key);
    if (found == row.end())
      fail(ErrorCode::data, "{}: no key \"{}\" (keys: {}); name the prompt's key with --input-key",
           place, options_.input_key, keys_of(row));
    if (found->is_array())
      fail(
          ErrorCode::data,
          "{}: \"{}\" is an array; chat messages need a chat template, which is not supported yet: "
          "store the rendered prompt as a string",
          place, options_.input_key);
    if (!found->is_string())
      fail(ErrorCode::data, "{}: \"{}\" is a {}; a prompt must be a string", place,
           options_.input_key, found->type_name());
    std::string text = found->get<std::string>();
    if (text.empty())
      fail(ErrorCode::data, "{}: \"{}\" is empty; a prompt must have text", place,
           options_.input_key);
    return text;
  }

  std::string label_of(const json& row, const std::string& place) const {
    if (options_.label_key.empty()) return {};
    const auto found = row.find(options_.label_key);
    if (found == row.end())
      fail(ErrorCode::data,
           "{}: no key \"{}\" (keys: {}); name the label's key with --label-key, or give "
           "--label-key \"\" when there are no labels",
           place, options_.label_key, keys_of(row));
    if (found->is_number()) return found->dump();
    if (!found->is_string())
      fail(ErrorCode::data, "{}: \"{}\" is a {}; a label must be a string or a number", place,
           options_.label_key, found->type_name());
    return found->get<std::string>();
  }

  json metadata_of(const json& row, const std::string& place) const {
    const auto found = row.find(options_.metadata_key);
    if (found == row.end() || found->is_null()) return json::object();
    if (!found->is_object())
      fail(ErrorCode::data, "{}: \"{}\" is a {}; metadata must be an object", place,
           options_.metadata_key, found->type_name());
    return *found;
  }

  const DataOptions& options_;
  std::string file_;
};

/// A slice's bound in 0…rows, as Python resolves it.
int64_t resolve_bound(int64_t bound, int64_t rows) {
  return std::clamp<int64_t>(bound < 0 ? bound + rows : bound, 0, rows);
}

}  // namespace

std::vector<Prompt> read_prompt_file(const DataOptions& options) {
  const SlicedPath sliced = parse_path(options.path);
  if (sliced.path.ends_with(".parquet"))
    fail(ErrorCode::data, "{}: Parquet is not read; convert it to JSON lines (.jsonl)",
         sliced.path);
  const std::string content = read_file(sliced.path);
  const std::vector<Line> lines = lines_of(content);
  const auto rows = static_cast<int64_t>(lines.size());
  if (rows == 0)
    fail(ErrorCode::data, "{}: no rows; it must hold one JSON object a line", sliced.path);
  const int64_t begin = resolve_bound(sliced.begin.value_or(0), rows);
  const int64_t end = resolve_bound(sliced.end.value_or(rows), rows);
  if (begin >= end)
    fail(ErrorCode::data, "{}: the slice selects none of the {} rows", options.path, rows);

  const RowReader reader(options, sliced.path);
  std::vector<Prompt> prompts;
  prompts.reserve(static_cast<size_t>(end - begin));
  for (int64_t row = begin; row < end; ++row)
    prompts.push_back(reader.read(lines[static_cast<size_t>(row)], row));
  return prompts;
}

}  // namespace miles
