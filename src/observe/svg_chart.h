// A chart as a piece of HTML: a <figure> with title, legend and an inline SVG that needs no script.
// Colours are CSS custom properties (observe/html.h defines them), so that it follows light and
// dark.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "observe/axis.h"

namespace miles {

/// How the values of one series are drawn.
enum class Mark {
  area,    // filled, stacked on the areas before it, starting at 0
  line,    // solid
  dashed,  // for limits
  thin,    // for what stands in the background, or on top of areas
  points,  // a line with a dot at each value; NaN are bridged, not gaps
  band,    // filled between `low` and `y`
};

struct ChartSeries {
  std::string name = {};    // in the legend and the hover text
  std::string colour = {};  // a custom property's name: "blue-1"
  Mark mark = Mark::line;
  std::vector<double> y = {};    // [points] NaN: nothing there
  std::vector<double> low = {};  // [points] lower edge, for a band only
};

/// What a point stands for along x.
enum class Spacing {
  points,  // values at x, joined by straight lines
  bars,    // one bar around each x
  steps,   // a value holds from its x until the next one
};

/// A dot with words: a peak.
struct ChartLabel {
  double x = 0;
  double y = 0;
  std::string text = {};
  bool below = false;  // the point, not above it
};

struct ChartSpec {
  std::string title = {};
  std::string caption = {};  // a sentence under the title; may be empty
  std::string x_label = {};  // "rollout"
  std::string y_label = {};  // "tokens"; the axis adds the unit that it chose
  Quantity x_quantity = Quantity::count;
  Quantity y_quantity = Quantity::number;
  Spacing spacing = Spacing::points;
  std::vector<double> x = {};  // [points] ascending
  std::vector<std::string> x_captions =
      {};  // [points] first line of the hover text; empty: label and x
  std::vector<ChartSeries> series = {};  // drawn in this order, areas first
  std::vector<double> ticks = {};        // x of light vertical lines
  std::vector<ChartLabel> labels = {};
  int width = 560;   // of the drawing, CSS pixels at full size
  int height = 250;  // same
};

/// Points beyond this many cannot be told apart and make the file heavy: reduce the data before.
inline constexpr size_t kChartPoints = 360;

/// The figure. With no points it says so in the chart's place. Aborts on series of differing
/// length.
std::string svg_chart(const ChartSpec& spec);

}  // namespace miles
