#include "observe/json_lines.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/file.h"

namespace miles {
namespace {

using LineVisitor =
    std::function<void(std::string_view line, const nlohmann::ordered_json& object)>;

/// Parses each whole line of `content`; what follows the last newline is a torn line and is
/// skipped.
void for_each_line(const std::filesystem::path& path, std::string_view content,
                   const LineVisitor& visit) {
  int64_t number = 0;
  for (size_t begin = 0;;) {
    const size_t end = content.find('\n', begin);
    if (end == std::string_view::npos) return;
    const std::string_view line = content.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    const auto object = nlohmann::ordered_json::parse(line, nullptr, false);
    if (!object.is_object())
      fail(ErrorCode::data,
           "{}:{}: expected one JSON object a line, found '{}'; delete that line to go on",
           path.string(), number, line.substr(0, 60));
    visit(line, object);
  }
}

std::string line_of(const nlohmann::ordered_json& object) {
  MILES_CHECK(object.is_object(), "a line must be an object, not {}", object.dump());
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

}  // namespace

JsonLines::JsonLines(std::filesystem::path path, Open mode) : path_(std::move(path)) {
  if (mode == Open::fresh) {
    open_for_append(O_TRUNC);
    return;
  }
  open_for_append(0);
  try {
    const std::string content = read_file(path_);
    const size_t whole = content.rfind('\n') + 1;  // npos + 1 is 0: no whole line
    if (whole < content.size() && ::ftruncate(fd_, static_cast<off_t>(whole)) != 0)
      fail(ErrorCode::data, "{}: cannot cut off the torn last line: {}", path_.string(),
           std::strerror(errno));
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

JsonLines::~JsonLines() {
  if (fd_ >= 0) ::close(fd_);
}

void JsonLines::open_for_append(int extra_flags) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | extra_flags, 0644);
  if (fd_ < 0)
    fail(ErrorCode::data, "{}: cannot open for writing: {}", path_.string(), std::strerror(errno));
}

void JsonLines::append(const nlohmann::ordered_json& object) {
  const std::string line = line_of(object);
  struct stat before = {};
  if (::fstat(fd_, &before) != 0)
    fail(ErrorCode::data, "{}: cannot write: {}", path_.string(), std::strerror(errno));
  ssize_t written = 0;
  do {
    written = ::write(fd_, line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(line.size())) return;
  // A short write means that the disk, the quota or the file size limit is exhausted.
  const int reason = written < 0 ? errno : ENOSPC;
  if (written > 0 && ::ftruncate(fd_, before.st_size) != 0)
    fail(ErrorCode::data, "{}: cannot write: {}; its last line is torn", path_.string(),
         std::strerror(reason));
  fail(ErrorCode::data, "{}: cannot write: {}", path_.string(), std::strerror(reason));
}

void JsonLines::drop_from(std::string_view key, int64_t first) {
  const std::string content = read_file(path_);
  std::string kept;
  for_each_line(path_, content, [&](std::string_view line, const nlohmann::ordered_json& object) {
    const auto field = object.find(key);
    if (field != object.end() && field->is_number_integer() && field->get<int64_t>() >= first)
      return;
    kept.append(line).push_back('\n');
  });
  if (kept.size() != content.size()) replace_content(kept);
}

void JsonLines::replace_last(const nlohmann::ordered_json& object) {
  std::string content = read_file(path_);
  MILES_CHECK(content.ends_with('\n'), "{} has no last line", path_.string());
  content.resize(content.rfind('\n', content.size() - 2) + 1);  // npos + 1 is 0: it is the only one
  replace_content(content + line_of(object));
}

void JsonLines::replace_content(std::string_view content) {
  write_file_atomically(path_, content);
  // The descriptor still points at the file that was replaced.
  ::close(std::exchange(fd_, -1));
  open_for_append(0);
}

void JsonLines::sync() {
  if (::fsync(fd_) != 0)
    fail(ErrorCode::data, "{}: cannot sync to disk: {}", path_.string(), std::strerror(errno));
}

std::vector<nlohmann::ordered_json> read_json_lines(const std::filesystem::path& path) {
  std::vector<nlohmann::ordered_json> objects;
  const std::string content = read_file(path);
  for_each_line(path, content, [&](std::string_view, const nlohmann::ordered_json& object) {
    objects.push_back(object);
  });
  return objects;
}

}  // namespace miles
