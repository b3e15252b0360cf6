#include "observe/text_chart.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace miles {
namespace {

TEST(TextChart, DrawsALineInAscii) {
  const std::vector<double> values = {0, 1, 2, 3};
  EXPECT_EQ(text_chart(values, {.title = "reward",
                                .width = 8,
                                .height = 4,
                                .y_min = 0,
                                .y_max = 3,
                                .x_label = "n",
                                .style = TextStyle::ascii}),
            "reward\n"
            "  |       *\n"
            "2 +    ***\n"
            "  |  **\n"
            "0 +**\n"
            "  +--------\n"
            "   0  n   3\n");
}

TEST(TextChart, DrawsBrailleInUtf8) {
  const std::vector<double> values = {1, 1};
  const std::string chart = text_chart(values, {.title = "",
                                                .width = 8,
                                                .height = 2,
                                                .y_min = 0,
                                                .y_max = 1,
                                                .x_label = "",
                                                .style = TextStyle::unicode});
  EXPECT_EQ(chart.substr(0, chart.find('\n')), "1 ┤⠉⠉⠉⠉⠉⠉⠉⠉");
}

TEST(TextChart, FollowsTheLocale) {
  const std::vector<double> values = {1, 2};
  setenv("LC_ALL", "C", 1);
  EXPECT_EQ(text_chart(values, {}).find("└"), std::string::npos);
  setenv("LC_ALL", "en_US.utf8", 1);
  EXPECT_NE(text_chart(values, {}).find("└"), std::string::npos);
  unsetenv("LC_ALL");
}

TEST(TextChart, SaysThatThereIsNothing) {
  EXPECT_EQ(text_chart({}, {.title = "reward"}), "reward\n(no values)\n");
  EXPECT_EQ(text_chart(std::vector<double>{std::nan("")}, {}), "(no values)\n");
}

TEST(TextChart, GapsAndValuesOutsideTheRangeAndManyValuesStayInside) {
  std::vector<double> values;
  for (int i = 0; i < 10000; ++i) values.push_back(i % 100 == 0 ? std::nan("") : i);
  values.front() = -1e9;
  const std::string chart =
      text_chart(values, {.height = 5, .y_min = 0, .y_max = 100, .style = TextStyle::ascii});
  EXPECT_EQ(std::count(chart.begin(), chart.end(), '\n'), 7);
  EXPECT_NE(chart.find("9999"), std::string::npos);
  const std::string one = text_chart(std::vector<double>{3}, {.style = TextStyle::ascii});
  EXPECT_EQ(std::count(one.begin(), one.end(), '*'), 1);
}

TEST(TextTable, AlignsTextLeftAndNumbersRightByCharacter) {
  EXPECT_EQ(text_table({"event", "time"}, {{"é", "0.3 s"}, {"actor.onload", "–"}}),
            "event          time\n"
            "------------  -----\n"
            "é             0.3 s\n"
            "actor.onload      –\n");
}

TEST(TextTable, WithoutRowsShowsItsHeader) {
  EXPECT_EQ(text_table({"a", "bc"}, {}), "a  bc\n-  --\n");
}

}  // namespace
}  // namespace miles
