#include "observe/text_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "observe/axis.h"
#include "observe/statistics.h"

namespace miles {
namespace {

bool terminal_speaks_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    std::string lower;
    for (const char* c = value; *c != '\0'; ++c)
      lower += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
    return lower.find("utf-8") != std::string::npos || lower.find("utf8") != std::string::npos;
  }
  return false;
}

size_t characters(std::string_view utf8) {
  return static_cast<size_t>(std::count_if(utf8.begin(), utf8.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

/// Dots that become characters: 2 × 4 a braille character, or 1 × 1 in ASCII.
class Canvas {
 public:
  Canvas(int width, int height, TextStyle style)
      : braille_(style == TextStyle::unicode),
        width_(width),
        height_(height),
        dots_(static_cast<size_t>(columns() * rows()), false) {}

  int columns() const { return braille_ ? 2 * width_ : width_; }
  int rows() const { return braille_ ? 4 * height_ : height_; }
  void set(int column, int row) {
    dots_[static_cast<size_t>(int64_t{row} * columns() + column)] = true;
  }

  /// A straight line between two dots, both included.
  void line(int column0, int row0, int column1, int row1) {
    const int steps = std::max({std::abs(column1 - column0), std::abs(row1 - row0), 1});
    for (int i = 0; i <= steps; ++i) {
      const double share = static_cast<double>(i) / steps;
      set(static_cast<int>(std::lround(column0 + share * (column1 - column0))),
          static_cast<int>(std::lround(row0 + share * (row1 - row0))));
    }
  }

  std::string text_line(int line) const {
    std::string text;
    for (int c = 0; c < width_; ++c) {
      if (!braille_) {
        text += has(c, line) ? '*' : ' ';
        continue;
      }
      // Unicode 4.0, block U+2800: dots 1–3 and 7 are the left column, 4–6 and 8 the right one.
      static constexpr unsigned kBits[4][2] = {
          {0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
      unsigned bits = 0;
      for (int y = 0; y < 4; ++y)
        for (int x = 0; x < 2; ++x)
          if (has(2 * c + x, 4 * line + y)) bits |= kBits[y][x];
      if (bits == 0) {
        text += ' ';
        continue;
      }
      text += {static_cast<char>(0xE2), static_cast<char>(0xA0 | (bits >> 6)),
               static_cast<char>(0x80 | (bits & 0x3F))};
    }
    return text.substr(0, text.find_last_not_of(' ') + 1);
  }

 private:
  bool has(int column, int row) const {
    return dots_[static_cast<size_t>(int64_t{row} * columns() + column)];
  }

  bool braille_;
  int width_;   // characters
  int height_;  // lines
  std::vector<bool> dots_;
};

Axis y_axis(std::span<const double> values, const TextChartOptions& options) {
  const bool fixed = options.y_min || options.y_max;
  return make_axis({.low = options.y_min.value_or(min_of(values)),
                    .high = options.y_max.value_or(max_of(values)),
                    .max_ticks = std::clamp(options.height / 3 + 1, std::min(options.height, 3), 6),
                    .ends = fixed ? AxisOptions::Ends::data : AxisOptions::Ends::ticks});
}

void plot(Canvas& canvas, std::span<const double> values, const Axis& axis) {
  const std::vector<IndexRange> ranges =
      split_evenly(values.size(), static_cast<size_t>(canvas.columns()));
  const auto last = static_cast<double>(std::max<size_t>(ranges.size() - 1, 1));
  int before_column = -1;
  int before_row = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const double value = mean_of(values.subspan(ranges[i].begin, ranges[i].end - ranges[i].begin));
    if (std::isnan(value)) {
      before_column = -1;
      continue;
    }
    const double share = std::clamp((value - axis.low) / (axis.high - axis.low), 0.0, 1.0);
    const int row = static_cast<int>(std::lround((1 - share) * (canvas.rows() - 1)));
    const int column =
        static_cast<int>(std::lround(static_cast<double>(i) / last * (canvas.columns() - 1)));
    if (before_column < 0) {
      canvas.set(column, row);
    } else {
      canvas.line(before_column, before_row, column, row);
    }
    before_column = column;
    before_row = row;
  }
}

bool looks_like_number(const std::string& cell) {
  static constexpr std::string_view kNone[] = {"", "-", "–"};
  if (std::find(std::begin(kNone), std::end(kNone), cell) != std::end(kNone)) return true;
  const size_t sign = cell[0] == '-' || cell[0] == '+' ? 1 : 0;
  return sign < cell.size() && std::isdigit(static_cast<unsigned char>(cell[sign])) != 0;
}

std::string padded(const std::string& cell, size_t width, bool right) {
  const std::string space(width - characters(cell), ' ');
  return right ? space + cell : cell + space;
}

}  // namespace

std::string text_chart(std::span<const double> values, const TextChartOptions& options) {
  MILES_CHECK(options.width >= 8 && options.height >= 2, "a chart of {} × {} characters",
              options.width, options.height);
  std::string text = options.title.empty() ? "" : options.title + "\n";
  if (std::isnan(max_of(values))) return text + "(no values)\n";
  TextStyle style = options.style;
  if (style == TextStyle::automatic)
    style = terminal_speaks_utf8() ? TextStyle::unicode : TextStyle::ascii;
  const bool unicode = style == TextStyle::unicode;

  const Axis axis = y_axis(values, options);
  Canvas canvas(options.width, options.height, style);
  plot(canvas, values, axis);
  std::vector<std::string> labels(static_cast<size_t>(options.height));
  size_t label_width = 0;
  for (const AxisTick& tick : axis.ticks) {
    const double share = (axis.high - tick.value) / (axis.high - axis.low);
    labels[static_cast<size_t>(std::lround(share * (options.height - 1)))] = tick.label;
    label_width = std::max(label_width, tick.label.size());
  }
  for (int line = 0; line < options.height; ++line) {
    const std::string& label = labels[static_cast<size_t>(line)];
    const char* rule = unicode ? (label.empty() ? "│" : "┤") : (label.empty() ? "|" : "+");
    text += fmt::format("{:>{}} {}{}\n", label, label_width, rule, canvas.text_line(line));
  }
  const std::string margin(label_width + 1, ' ');
  text += margin + (unicode ? "└" : "+");
  for (int i = 0; i < options.width; ++i) text += unicode ? "─" : "-";
  const std::string last = fmt::format("{}", values.size() - 1);
  const int room = options.width - 1 - static_cast<int>(last.size());
  text += fmt::format("\n{} 0{:^{}}{}\n", margin, options.x_label, std::max(room, 0), last);
  return text;
}

std::string text_table(const std::vector<std::string>& header,
                       const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  std::vector<bool> right;
  for (size_t c = 0; c < header.size(); ++c) {
    size_t width = characters(header[c]);
    bool numbers = !rows.empty();
    for (const auto& row : rows) {
      MILES_CHECK(row.size() == header.size(), "a row of {} cells under {} headings", row.size(),
                  header.size());
      width = std::max(width, characters(row[c]));
      numbers = numbers && looks_like_number(row[c]);
    }
    widths.push_back(width);
    right.push_back(numbers);
  }
  std::string text;
  const auto add_line = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (size_t c = 0; c < cells.size(); ++c)
      line += (c > 0 ? "  " : "") + padded(cells[c], widths[c], right[c]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  };
  add_line(header);
  std::vector<std::string> rule;
  for (const size_t width : widths) rule.push_back(std::string(width, '-'));
  add_line(rule);
  for (const auto& row : rows) add_line(row);
  return text;
}

}  // namespace miles
