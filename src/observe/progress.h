// Progress of work that takes more than two seconds: a bar redrawn in place on a terminal, now and
// then a line in a log, nothing at all for what is done sooner.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

namespace miles {

/// Where progress goes. The default is the program's: stderr if that is a terminal, else the log.
struct ProgressOutput {
  enum class Style { bar, lines };
  Style style = Style::lines;
  int columns = 80;                             // width of the terminal, characters
  std::function<void(std::string_view)> write;  // bar: raw text for the terminal; lines: one line
  std::function<double()> now;                  // seconds on a clock that never goes back

  static ProgressOutput standard();
};

/// Reports while it lives; the destructor writes the last word. Threads may share one. Drawing
/// happens inside advance() and note(), so what never calls them shows nothing.
///   Progress progress("loading weights", total_bytes, "bytes");
///   progress.advance(tensor_bytes);
class Progress {
 public:
  /// `total` in `unit`s, 0 when unknown. The unit "bytes" is written in KiB, MiB, ….
  Progress(std::string title, int64_t total, std::string unit,
           ProgressOutput output = ProgressOutput::standard());
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `n` >= 0 more units are done.
  void advance(int64_t n = 1);

  /// A short remark shown behind the counts until the next one: "reward 0.53".
  void note(std::string text);

 private:
  void report_if_due();
  std::string counts(double elapsed) const;
  std::string bar(double elapsed) const;

  std::mutex mutex_;
  std::string title_;
  int64_t total_;  // units; 0: unknown
  std::string unit_;
  ProgressOutput output_;
  std::string note_;
  int64_t done_ = 0;           // units
  double started_;             // seconds on output_.now
  double reported_ = -1;       // when last reported, seconds since started_; -1: never
  int64_t reported_done_ = 0;  // done_ at that time
  int exceptions_ = 0;         // in flight at the start; more at the end means that the work failed
};

}  // namespace miles
