#include "observe/svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/error.h"
#include "observe/html.h"
#include "observe/statistics.h"

namespace miles {
namespace {

// Room around the plot, pixels.
constexpr double kLeft = 58;
constexpr double kRight = 14;
constexpr double kTop = 12;
constexpr double kBottom = 40;
constexpr double kWidestBar = 44;  // pixels

/// The stretch of x that one point stands for.
struct Cell {
  double left = 0;
  double right = 0;
};

std::vector<Cell> cells_of(const ChartSpec& spec) {
  const std::vector<double>& x = spec.x;
  const size_t n = x.size();
  std::vector<Cell> cells(n);
  const double usual = n > 1 ? (x[n - 1] - x[0]) / static_cast<double>(n - 1) : 1;
  for (size_t i = 0; i < n; ++i) {
    const double before = i > 0 ? x[i] - x[i - 1] : n > 1 ? x[1] - x[0] : 1;
    const double after = i + 1 < n ? x[i + 1] - x[i] : i > 0 ? before : usual;
    if (spec.spacing == Spacing::steps) {
      cells[i] = {x[i], i + 1 < n ? x[i + 1] : x[i] + (usual > 0 ? usual : 1)};
    } else {
      cells[i] = {x[i] - before / 2, x[i] + after / 2};
    }
  }
  return cells;
}

std::string axis_title(const std::string& label, const std::string& unit) {
  return escape_html(unit.empty() ? label : fmt::format("{} ({})", label, unit));
}

class Drawing {
 public:
  explicit Drawing(const ChartSpec& spec) : spec_(spec), cells_(cells_of(spec)) {
    stack_areas();
    choose_axes();
  }

  std::string svg() {
    fmt::format_to(out(), "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n",
                   spec_.width, spec_.height, escape_html(spec_.title));
    draw_grid();
    for (const double x : spec_.ticks)
      fmt::format_to(out(), "<path class=\"tick\" d=\"M{0:.1f} {1:.1f}V{2:.1f}\"/>\n", at_x(x),
                     kTop, at_y(y_.low));
    for (size_t s = 0; s < spec_.series.size(); ++s) draw_series(s);
    for (const ChartLabel& label : spec_.labels) draw_label(label);
    draw_hover();
    text_ += "</svg>\n";
    return std::move(text_);
  }

 private:
  std::back_insert_iterator<std::string> out() { return std::back_inserter(text_); }

  double at_x(double x) const {
    return kLeft + (x - x_.low) / (x_.high - x_.low) * (spec_.width - kLeft - kRight);
  }
  double at_y(double y) const {
    return kTop + (y_.high - y) / (y_.high - y_.low) * (spec_.height - kTop - kBottom);
  }

  void stack_areas() {
    floors_.resize(spec_.series.size());
    std::vector<double> sum(spec_.x.size(), 0);
    for (size_t s = 0; s < spec_.series.size(); ++s) {
      if (spec_.series[s].mark != Mark::area) continue;
      floors_[s] = sum;
      for (size_t i = 0; i < sum.size(); ++i)
        if (spec_.series[s].y[i] > 0) sum[i] += spec_.series[s].y[i];
      has_areas_ = true;
    }
    if (has_areas_) stack_top_ = max_of(sum);
  }

  void choose_axes() {
    double low = has_areas_ ? 0 : std::nan("");
    double high = stack_top_;
    for (const ChartSeries& series : spec_.series) {
      if (series.mark == Mark::area) continue;
      low = std::fmin(low, min_of(series.mark == Mark::band ? series.low : series.y));
      high = std::fmax(high, max_of(series.y));
    }
    for (const ChartLabel& label : spec_.labels) high = std::fmax(high, label.y);
    // A baseline at 0 costs little when the values are not far from it, and lengths compare
    // honestly.
    if (low > 0 && low < 0.6 * high) low = 0;
    y_ = make_axis({.low = low, .high = high, .quantity = spec_.y_quantity, .max_ticks = 6});
    // A single point stands in the middle of its cell.
    const bool points = spec_.spacing == Spacing::points && spec_.x.size() > 1;
    x_ = make_axis({.low = points ? spec_.x.front() : cells_.front().left,
                    .high = points ? spec_.x.back() : cells_.back().right,
                    .quantity = spec_.x_quantity,
                    .max_ticks = std::max(3, spec_.width / 75),
                    .ends = AxisOptions::Ends::data});
  }

  void draw_grid() {
    const double right = spec_.width - kRight;
    const double bottom = at_y(y_.low);
    for (const AxisTick& tick : y_.ticks) {
      fmt::format_to(out(),
                     "<path class=\"grid\" d=\"M{0} {1:.1f}H{2}\"/>"
                     "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>\n",
                     kLeft, at_y(tick.value), right, kLeft - 7, at_y(tick.value) + 4, tick.label);
    }
    fmt::format_to(out(), "<path class=\"axis\" d=\"M{} {:.1f}H{}\"/>\n", kLeft, bottom, right);
    for (const AxisTick& tick : x_.ticks) {
      fmt::format_to(out(),
                     "<path class=\"axis\" d=\"M{0:.1f} {1:.1f}v4\"/>"
                     "<text x=\"{0:.1f}\" y=\"{2:.1f}\" text-anchor=\"middle\">{3}</text>\n",
                     at_x(tick.value), bottom, bottom + 17, tick.label);
    }
    fmt::format_to(out(), "<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                   (kLeft + right) / 2, spec_.height - 5, axis_title(spec_.x_label, x_.unit));
    fmt::format_to(out(),
                   "<text transform=\"translate(13 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}"
                   "</text>\n",
                   (kTop + bottom) / 2, axis_title(spec_.y_label, y_.unit));
  }

  void draw_series(size_t s) {
    const ChartSeries& series = spec_.series[s];
    switch (series.mark) {
      case Mark::area:
        draw_area(s);
        break;
      case Mark::band:
        draw_band(series);
        break;
      case Mark::points:
        draw_line(series, 1.8);
        draw_dots(series);
        break;
      case Mark::thin:
        draw_line(series, 1.0);
        break;
      case Mark::line:
      case Mark::dashed:
        draw_line(series, 1.8);
        break;
    }
  }

  void draw_area(size_t s) {
    const ChartSeries& series = spec_.series[s];
    std::string path;
    for (size_t i = 0; i < cells_.size(); ++i) {
      if (!(series.y[i] > 0)) continue;
      double left = at_x(cells_[i].left);
      double right = at_x(cells_[i].right);
      if (spec_.spacing == Spacing::bars && right - left > 4) {
        const double gap = std::max(std::min(3.0, (right - left) * 0.2), right - left - kWidestBar);
        left += gap / 2;
        right -= gap / 2;
      }
      const double floor = floors_[s][i];
      fmt::format_to(std::back_inserter(path), "M{:.1f} {:.1f}H{:.1f}V{:.1f}H{:.1f}Z", left,
                     at_y(floor), right, at_y(floor + series.y[i]), left);
    }
    if (path.empty()) return;
    // Without crisp edges neighbouring bars show seams.
    fmt::format_to(out(),
                   "<path d=\"{}\" style=\"fill:var(--{})\" shape-rendering=\"crispEdges\"/>\n",
                   path, series.colour);
  }

  void draw_band(const ChartSeries& series) {
    const auto there = [&](size_t i) { return !std::isnan(series.y[i] + series.low[i]); };
    std::string path;
    for (size_t begin = 0; begin < spec_.x.size();) {
      size_t end = begin;
      while (end < spec_.x.size() && there(end)) ++end;
      for (size_t i = begin; i < end; ++i)
        fmt::format_to(std::back_inserter(path), "{}{:.1f} {:.1f}", i == begin ? 'M' : 'L',
                       at_x(spec_.x[i]), at_y(series.y[i]));
      for (size_t i = end; i-- > begin;)
        fmt::format_to(std::back_inserter(path), "L{:.1f} {:.1f}", at_x(spec_.x[i]),
                       at_y(series.low[i]));
      if (end > begin) path += 'Z';
      begin = std::max(end, begin + 1);
    }
    // The stroke keeps a band visible where it is a single point or has no height.
    if (!path.empty())
      fmt::format_to(
          out(), "<path d=\"{0}\" style=\"fill:var(--{1});stroke:var(--{1})\" opacity=\".3\"/>\n",
          path, series.colour);
  }

  void draw_line(const ChartSeries& series, double width) {
    std::string path;
    bool pen_down = false;
    for (size_t i = 0; i < spec_.x.size(); ++i) {
      if (std::isnan(series.y[i])) {
        pen_down = pen_down && series.mark == Mark::points;
        continue;
      }
      const double y = at_y(series.y[i]);
      if (spec_.spacing == Spacing::points) {
        fmt::format_to(std::back_inserter(path), "{}{:.1f} {:.1f}", pen_down ? 'L' : 'M',
                       at_x(spec_.x[i]), y);
        const bool alone = !pen_down && (i + 1 == spec_.x.size() || std::isnan(series.y[i + 1]));
        if (alone) path += "h0";  // with round caps, a dot
      } else {
        if (!pen_down)
          fmt::format_to(std::back_inserter(path), "M{:.1f} {:.1f}", at_x(cells_[i].left), y);
        fmt::format_to(std::back_inserter(path), "V{:.1f}H{:.1f}", y, at_x(cells_[i].right));
      }
      pen_down = true;
    }
    if (path.empty()) return;
    const char* dash =
        series.mark == Mark::dashed ? ";stroke-dasharray:6 5" : ";stroke-linecap:round";
    fmt::format_to(out(),
                   "<path d=\"{}\" style=\"fill:none;stroke:var(--{});stroke-width:{}"
                   ";stroke-linejoin:round{}\"/>\n",
                   path, series.colour, width, dash);
  }

  void draw_dots(const ChartSeries& series) {
    for (size_t i = 0; i < spec_.x.size(); ++i)
      if (!std::isnan(series.y[i]))
        fmt::format_to(out(),
                       "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" style=\"fill:var(--{})\"/>\n",
                       at_x(spec_.x[i]), at_y(series.y[i]), series.colour);
  }

  void draw_label(const ChartLabel& label) {
    const double x = at_x(label.x);
    const double y = at_y(label.y);
    const bool leftwards = x > spec_.width / 2.0;
    fmt::format_to(
        out(),
        "<circle cx=\"{0:.1f}\" cy=\"{1:.1f}\" r=\"3.5\" style=\"fill:var(--text)\"/>"
        "<text class=\"label\" x=\"{2:.1f}\" y=\"{3:.1f}\" text-anchor=\"{4}\">{5}</text>\n",
        x, y, leftwards ? x - 7 : x + 7, label.below ? y + 14 : std::max(y - 4, 11.0),
        leftwards ? "end" : "start", escape_html(label.text));
  }

  /// An invisible strip per point, whose title the browser shows under the pointer.
  void draw_hover() {
    text_ += "<g class=\"hover\">\n";
    for (size_t i = 0; i < cells_.size(); ++i) {
      const double left = std::max(at_x(cells_[i].left), kLeft);
      const double right = std::min(at_x(cells_[i].right), spec_.width - kRight);
      fmt::format_to(out(),
                     "<rect x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" "
                     "height=\"{:.1f}\"><title>{}</title></rect>\n",
                     left, kTop, std::max(right - left, 0.1), at_y(y_.low) - kTop,
                     escape_html(hover_text(i)));
    }
    text_ += "</g>\n";
  }

  std::string hover_text(size_t i) const {
    std::string text =
        spec_.x_captions.empty()
            ? fmt::format("{} {}", spec_.x_label, format_quantity(spec_.x[i], spec_.x_quantity))
            : spec_.x_captions[i];
    for (const ChartSeries& series : spec_.series) {
      if (std::isnan(series.y[i]) || (series.mark == Mark::area && series.y[i] == 0)) continue;
      text += fmt::format("\n{}: ", series.name);
      if (series.mark == Mark::band)
        text += format_quantity(series.low[i], spec_.y_quantity) + " … ";
      text += format_quantity(series.y[i], spec_.y_quantity);
    }
    return text;
  }

  const ChartSpec& spec_;
  std::vector<Cell> cells_;                  // [points]
  std::vector<std::vector<double>> floors_;  // [series][points] what an area stands on
  bool has_areas_ = false;
  double stack_top_ = std::nan("");  // the highest stack
  Axis x_;
  Axis y_;
  std::string text_;
};

std::string legend(const ChartSpec& spec) {
  std::string text = "<div class=\"legend\">";
  for (const ChartSeries& series : spec.series) {
    const char* key = "";
    switch (series.mark) {
      case Mark::area:
        key = "<rect width=\"12\" x=\"3\" height=\"10\" rx=\"2\"";
        break;
      case Mark::band:
        key = "<rect width=\"18\" height=\"10\" rx=\"2\" opacity=\".35\"";
        break;
      case Mark::points:
        key = "<path stroke-width=\"2\" d=\"M0 5h18M6 5a3 3 0 1 0 6 0 3 3 0 1 0-6 0\"";
        break;
      case Mark::dashed:
        key = "<path stroke-width=\"2\" stroke-dasharray=\"4 3\" d=\"M0 5h18\"";
        break;
      case Mark::thin:
        key = "<path stroke-width=\"1\" d=\"M0 5h18\"";
        break;
      case Mark::line:
        key = "<path stroke-width=\"2.5\" d=\"M0 5h18\"";
        break;
    }
    const bool filled = series.mark == Mark::area || series.mark == Mark::band;
    text += fmt::format(
        "<span><svg viewBox=\"0 0 18 10\">{} style=\"{}:var(--{})\"/></svg>{}</span>", key,
        filled ? "fill" : "fill:none;stroke", series.colour, escape_html(series.name));
  }
  return text + "</div>\n";
}

}  // namespace

std::string svg_chart(const ChartSpec& spec) {
  for (const ChartSeries& series : spec.series) {
    MILES_CHECK(series.y.size() == spec.x.size(),
                "series '{}' of chart '{}' has {} values for {} points", series.name, spec.title,
                series.y.size(), spec.x.size());
    MILES_CHECK(series.mark != Mark::band || series.low.size() == spec.x.size(),
                "band '{}' of chart '{}' lacks its lower edge", series.name, spec.title);
  }
  std::string text =
      fmt::format("<figure{}>\n<figcaption>{}</figcaption>\n",
                  spec.width > 800 ? " class=\"wide\"" : "", escape_html(spec.title));
  if (!spec.caption.empty()) text += fmt::format("<p>{}</p>\n", escape_html(spec.caption));
  if (spec.x.empty()) return text + "<div class=\"none\">nothing recorded</div>\n</figure>\n";
  if (spec.series.size() > 1) text += legend(spec);
  return text + Drawing(spec).svg() + "</figure>\n";
}

}  // namespace miles
