// Charts and tables for the terminal: plain text, in UTF-8 where the terminal speaks it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace miles {

enum class TextStyle {
  automatic,  // unicode when LC_ALL, LC_CTYPE or LANG (the first that is set) names UTF-8
  unicode,    // braille dots: 2 × 4 points a character
  ascii,      // one '*' a character
};

struct TextChartOptions {
  std::string title = {};            // line above the chart; may be empty
  int width = 60;                    // of the plot without its labels, characters, >= 8
  int height = 10;                   // of the plot, lines, >= 2
  std::optional<double> y_min = {};  // none: from the values
  std::optional<double> y_max = {};  // none: from the values
  std::string x_label = {};          // what the values are counted by: "rollout"
  TextStyle style = TextStyle::automatic;
};

/// The values as a line over 0 … n-1, lines ended by '\n'. NaN are gaps; values beyond y_min or
/// y_max are drawn at the edge. More values than dots are averaged. No values: says so.
std::string text_chart(std::span<const double> values, const TextChartOptions& options);

/// Columns aligned under their headings, two spaces apart, lines ended by '\n'. A column whose
/// cells all look like numbers is aligned right. UTF-8 counts by character. Every row is as long as
/// the header.
std::string text_table(const std::vector<std::string>& header,
                       const std::vector<std::vector<std::string>>& rows);

}  // namespace miles
