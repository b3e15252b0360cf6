#include "observe/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"

namespace miles {
namespace {

constexpr double kFirstReport = 2;    // seconds; what is done sooner is not worth a word
constexpr double kRedrawEvery = 0.1;  // seconds between two drawings of the bar
constexpr double kLineEvery = 5;      // seconds at least between two lines in a log, …
constexpr double kLineAnyway = 30;    // … which comes after this many even without much progress
constexpr double kLineShare = 0.1;    // progress of the whole that is worth a line
constexpr int kBarWidth = 24;         // characters

std::string amount(int64_t value, const std::string& unit) {
  return unit == "bytes" ? format_bytes(value) : fmt::format("{}", value);
}

bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

/// The first `columns` characters of UTF-8 text.
std::string clip(std::string text, int columns) {
  int seen = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (is_continuation(text[i])) continue;
    if (seen == columns) {
      text.resize(i);
      break;
    }
    ++seen;
  }
  return text;
}

}  // namespace

ProgressOutput ProgressOutput::standard() {
  ProgressOutput output;
  output.now = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  const bool quiet = !spdlog::should_log(spdlog::level::info);
  if (!quiet && ::isatty(STDERR_FILENO) == 1) {
    winsize size = {};
    if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
      output.columns = size.ws_col;
    output.style = Style::bar;
    output.write = [](std::string_view text) {
      std::fwrite(text.data(), 1, text.size(), stderr);
      std::fflush(stderr);
    };
  } else {
    output.write = [](std::string_view line) { log::info("{}", line); };
  }
  return output;
}

Progress::Progress(std::string title, int64_t total, std::string unit, ProgressOutput output)
    : title_(std::move(title)),
      total_(total),
      unit_(std::move(unit)),
      output_(std::move(output)),
      started_(output_.now()),
      exceptions_(std::uncaught_exceptions()) {
  MILES_CHECK(total_ >= 0, "progress of {} {}", total_, unit_);
}

Progress::~Progress() {
  const std::lock_guard lock(mutex_);
  const double elapsed = output_.now() - started_;
  if (reported_ < 0 && elapsed < kFirstReport) return;
  const char* verdict = std::uncaught_exceptions() > exceptions_ ? "stopped" : "done";
  const std::string last = fmt::format("{}: {}, {} in {}{}{}", title_, verdict, counts(elapsed),
                                       format_seconds(elapsed), note_.empty() ? "" : ", ", note_);
  const bool bar = output_.style == ProgressOutput::Style::bar;
  output_.write(bar ? fmt::format("\r\x1b[K{}\n", last) : last);
}

void Progress::advance(int64_t n) {
  const std::lock_guard lock(mutex_);
  MILES_CHECK(n >= 0, "progress of '{}' went back by {}", title_, -n);
  done_ += n;
  report_if_due();
}

void Progress::note(std::string text) {
  const std::lock_guard lock(mutex_);
  note_ = std::move(text);
  report_if_due();
}

void Progress::report_if_due() {
  const double elapsed = output_.now() - started_;
  if (elapsed < kFirstReport) return;
  const bool first = reported_ < 0;
  const double since = elapsed - reported_;
  if (output_.style == ProgressOutput::Style::bar) {
    if (!first && since < kRedrawEvery) return;
    output_.write(fmt::format("\r{}\x1b[K", clip(bar(elapsed), output_.columns - 1)));
  } else {
    const double share = static_cast<double>(done_ - reported_done_);
    const bool far = total_ > 0 && share >= kLineShare * static_cast<double>(total_);
    if (!first && since < (far ? kLineEvery : kLineAnyway)) return;
    if (done_ == total_ && total_ > 0) return;  // the destructor's line says it
    output_.write(
        fmt::format("{}: {}{}{}", title_, counts(elapsed), note_.empty() ? "" : ", ", note_));
  }
  reported_ = elapsed;
  reported_done_ = done_;
}

std::string Progress::counts(double elapsed) const {
  std::string text = amount(done_, unit_);
  if (total_ > 0) {
    text += fmt::format(" of {}", amount(total_, unit_));
    if (done_ < total_) text += fmt::format(" ({}%)", done_ * 100 / total_);
  }
  if (unit_ != "bytes") text += " " + unit_;
  if (unit_ == "bytes" && elapsed > 0)
    text += fmt::format(", {}/s",
                        format_bytes(static_cast<int64_t>(static_cast<double>(done_) / elapsed)));
  return text;
}

std::string Progress::bar(double elapsed) const {
  std::string text = title_ + " ";
  if (total_ > 0) {
    const double share = std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_));
    const int filled = static_cast<int>(share * kBarWidth);
    text += fmt::format("[{}{}] ", std::string(static_cast<size_t>(filled), '#'),
                        std::string(static_cast<size_t>(kBarWidth - filled), '.'));
  }
  text += counts(elapsed);
  if (done_ > 0 && done_ < total_) {
    const double left = elapsed * static_cast<double>(total_ - done_) / static_cast<double>(done_);
    text += fmt::format(", {} left", format_seconds(left));
  }
  if (!note_.empty()) text += ", " + note_;
  return text;
}

}  // namespace miles
