// Plots of characters: where curves, points, ticks and labels are.
#include "lehr/draw/text_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "lehr/base/error.h"

namespace lehr::draw {
namespace {

using testing::HasSubstr;
using testing::Not;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream all(text);
  for (std::string line; std::getline(all, line);) {
    lines.push_back(line);
  }
  return lines;
}

// Characters of UTF-8.
size_t columns_of(const std::string& line) {
  return static_cast<size_t>(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

const PlotSeries kRising{.name = "loss", .x = {0, 1, 2, 3, 4}, .y = {0, 1, 2, 3, 4}};

TEST(TextPlot, DrawsALineFromCornerToCorner) {
  EXPECT_EQ(
      text_plot({kRising}, {.width = 30, .height = 5, .ascii = true}),
      "* loss 4\n"
      "4 +                      *****\n"
      "  |                 *****\n"
      "2 +           ******\n"
      "  |     ******\n"
      "0 +*****\n"
      "  ++------------+------------+\n"
      "   0            2            4\n");
}

TEST(TextPlot, HasTwoByFourDotsInACellOfBraille) {
  const auto lines = lines_of(text_plot({kRising}, {.width = 30, .height = 5}));
  ASSERT_EQ(lines.size(), 8U);
  EXPECT_EQ(lines[0], "⠒⠒ loss 4");
  EXPECT_TRUE(lines[5].starts_with("0 ┤⣀")) << lines[5];  // the lowest dots
  EXPECT_TRUE(lines[1].ends_with("⠉")) << lines[1];       // the highest ones
}

TEST(TextPlot, FitsItsWidth) {
  PlotSeries series{.name = "loss"};
  for (int step = 1; step <= 1400; ++step) {
    series.x.push_back(step);
    series.y.push_back(1 + 4 * std::exp(-step / 200.0));
  }
  for (const bool ascii : {false, true}) {
    for (const int64_t width : {30, 79, 80, 160}) {
      for (const std::string& line : lines_of(text_plot({series}, {.width = width, .ascii = ascii}))) {
        EXPECT_LE(columns_of(line), static_cast<size_t>(width)) << line;
      }
    }
  }
}

TEST(TextPlot, HasNoGapWhereACurveIsSteep) {
  const PlotSeries step{.name = "loss", .x = {0, 49, 50, 100}, .y = {10, 10, 0, 0}};
  const auto lines = lines_of(text_plot({step}, {.width = 60, .height = 8, .ascii = true}));
  for (size_t row = 1; row <= 8; ++row) {
    EXPECT_THAT(lines[row], HasSubstr("*"));
  }
}

TEST(TextPlot, DrawsAnOForEachMarker) {
  const PlotSeries held_out{.name = "validation_loss", .x = {2, 4}, .y = {1, 3}, .markers = true};
  const std::string text = text_plot({kRising, held_out}, {.width = 60, .height = 9});
  EXPECT_EQ(std::count(text.begin(), text.end(), 'o'), 2 + 1 + 3);  // two points, the legend's sign, and its names
  EXPECT_THAT(text, HasSubstr("⠒⠒ loss 4   o validation_loss 3\n"));
}

TEST(TextPlot, TellsSeriesApartByColorOrByCharacter) {
  const PlotSeries other{.name = "other", .x = {0, 4}, .y = {4, 0}};
  const std::string plain = text_plot({kRising, other}, {});
  EXPECT_THAT(plain, HasSubstr("* loss 4   + other 0\n"));
  EXPECT_THAT(plain, Not(HasSubstr("\x1b")));
  const std::string colored = text_plot({kRising, other}, {.color = true});
  EXPECT_THAT(colored, HasSubstr("\x1b[36m⠒⠒\x1b[0m loss 4   \x1b[33m⠒⠒\x1b[0m other 0\n"));
}

TEST(TextPlot, LeavesOutWhatCannotBeDrawn) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(text_plot({}, {}), "");
  EXPECT_EQ(text_plot({{.name = "loss", .x = {1, 2}, .y = {kNan, kNan}}}, {}), "");
  const PlotSeries some{.name = "loss", .x = {0, 1, 2, 3, 4, 5}, .y = {0, 1, 2, 3, 4, kNan}};
  EXPECT_THAT(text_plot({some}, {.ascii = true}), HasSubstr("* loss 4\n"));
}

TEST(TextPlot, DrawsASinglePoint) {
  const std::string text = text_plot({{.name = "loss", .x = {7}, .y = {2.5}}}, {.ascii = true});
  EXPECT_EQ(std::count(text.begin(), text.end(), '*'), 2) << text;
  EXPECT_THAT(text, HasSubstr("2.5"));
}

// Means of a constant differ in the last bits, and a file may hold any number.
TEST(TextPlot, DrawsValuesThatDifferByRoundingAndHugeOnes) {
  std::vector<double> steps, means;
  double sum = 0;
  for (int step = 1; step <= 10'000; ++step) {
    sum += 0.1;
    steps.push_back(step);
    means.push_back(sum / step);
  }
  EXPECT_FALSE(text_plot({{.name = "lr", .x = steps, .y = means}}, {}).empty());
  EXPECT_FALSE(text_plot({{.name = "lr", .x = {1, 2}, .y = {1, std::nextafter(1.0, 2.0)}}}, {}).empty());
  EXPECT_FALSE(text_plot({{.name = "loss", .x = {1, 2}, .y = {-1e299, 1e299}}}, {}).empty());
  EXPECT_FALSE(text_plot({{.name = "loss", .x = {9e18}, .y = {1}}}, {}).empty());
}

TEST(TextPlot, RefusesStepsWithoutValues) {
  EXPECT_THROW(text_plot({{.name = "loss", .x = {1, 2}, .y = {1}}}, {}), Error);
}

}  // namespace
}  // namespace lehr::draw
