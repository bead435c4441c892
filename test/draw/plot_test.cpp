// Plots: ticks at round numbers, points at their coordinates, and no input that breaks the SVG.
#include "lehr/draw/plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lehr/base/error.h"
#include "lehr/draw/plot_scale.h"

namespace lehr::draw {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

// The d attribute of the first path with this class.
std::string path_of(const std::string& svg, const std::string& classes) {
  const std::string begin = "<path class=\"" + classes + "\" d=\"";
  const size_t at = svg.find(begin);
  if (at == std::string::npos) {
    return "";
  }
  const size_t first = at + begin.size();
  return svg.substr(first, svg.find('"', first) - first);
}

TEST(AxisScale, PutsTicksAtRoundNumbers) {
  EXPECT_THAT(AxisScale(0, 1000, 0, 100).ticks(5), testing::ElementsAre(0, 200, 400, 600, 800, 1000));
  EXPECT_THAT(AxisScale(1, 10, 0, 100, true).ticks(6), testing::ElementsAre(1, 2, 5, 10));
  const auto decades = AxisScale(1e-6, 1, 0, 100, true).ticks(6);
  EXPECT_EQ(decades.size(), 7U);
  for (const double range : {1e-9, 0.037, 1.0, 7.3, 12345.0, 9e11}) {
    const auto ticks = AxisScale(range, 2 * range, 0, 100).ticks(6);
    EXPECT_GE(ticks.size(), 3U) << range;
    EXPECT_LE(ticks.size(), 12U) << range;
  }
}

TEST(AxisScale, MapsItsEndsToItsPixels) {
  const AxisScale up(2, 4, 300, 100);
  EXPECT_DOUBLE_EQ(up(2), 300);
  EXPECT_DOUBLE_EQ(up(3), 200);
  EXPECT_DOUBLE_EQ(AxisScale(1, 100, 0, 10, true)(10), 5);
}

TEST(TickLabel, IsAsShortAsTheDistanceAllows) {
  EXPECT_EQ(tick_label(0.25, 0.05, 0.4), "0.25");
  EXPECT_EQ(tick_label(0.5, 0.1, 1), "0.5");
  EXPECT_EQ(tick_label(3, 1, 5), "3");
  EXPECT_EQ(tick_label(-0.0, 1, 5), "0");
  EXPECT_EQ(tick_label(1500, 500, 3000), "1,500");
  EXPECT_EQ(tick_label(5000, 5000, 20000), "5k");
  EXPECT_EQ(tick_label(12500, 500, 13000), "12.5k");
  EXPECT_EQ(tick_label(1.5e6, 5e5, 2e6), "1.5M");
  EXPECT_EQ(tick_label(1e-5, 1e-5, 1e-5), "1e-05");
}

TEST(LinePlot, DrawsPointsAtTheirCoordinates) {
  // The frame spans x from 68 to 816 and y from 408 up to 66; y has a margin of 5 % at both ends.
  const std::string svg = line_plot_svg({{.name = "train", .x = {0, 1, 2}, .y = {0, 1, 0.5}}}, {.title = "t"});
  EXPECT_EQ(path_of(svg, "line s0"), "M68 392.45L442 81.55L816 237");
}

TEST(LinePlot, DrawsSeriesWithLegendSmoothingAndMarkers) {
  const std::string svg = line_plot_svg(
      {{.name = "train", .x = {1, 2, 3}, .y = {3, 2, 1}, .smoothing = 5},
       {.name = "validation", .x = {1, 3}, .y = {3.25, 2.5}, .markers = true}},
      {.title = "Loss", .x_label = "step", .y_label = "loss"});
  EXPECT_NE(path_of(svg, "raw s0"), "");
  EXPECT_NE(path_of(svg, "line s0"), path_of(svg, "raw s0"));
  EXPECT_EQ(count(svg, "<circle class=\"dot f1\""), 2U);
  EXPECT_THAT(svg, testing::HasSubstr(">train  1<"));
  EXPECT_THAT(svg, testing::HasSubstr(">validation  2.5<"));
  EXPECT_THAT(svg, testing::HasSubstr("prefers-color-scheme: dark"));
}

TEST(LinePlot, GivesEachDotItsTooltip) {
  const std::string svg = line_plot_svg(
      {{.name = "a", .x = {0, 1, 2}, .y = {1, kNaN, 3}, .markers = true, .tooltips = {"first", "none", "<third>"}}},
      {});
  EXPECT_THAT(svg, testing::HasSubstr("><title>first</title></circle>"));
  EXPECT_THAT(svg, testing::HasSubstr("><title>&lt;third&gt;</title></circle>"));
  EXPECT_EQ(svg.find(">none<"), std::string::npos);
  EXPECT_EQ(count(svg, "<circle"), 2U);
}

TEST(LinePlot, LeavesAGapAtNonFiniteValues) {
  const std::string svg = line_plot_svg({{.name = "a", .x = {0, 1, 2, 3, 4}, .y = {1, 2, kNaN, 2, 1}}}, {.title = "t"});
  EXPECT_EQ(count(path_of(svg, "line s0"), "M"), 2U);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  const std::string log =
      line_plot_svg({{.name = "a", .x = {0, 1, 2, 3}, .y = {1, 0, 10, 100}}}, {.title = "t", .log_y = true});
  EXPECT_EQ(count(path_of(log, "line s0"), "M"), 2U);
}

TEST(LinePlot, DrawsNothingAndOnePointAndAFlatLine) {
  EXPECT_THAT(line_plot_svg({}, {.title = "t"}), testing::HasSubstr("no values yet"));
  for (const auto& y : {std::vector<double>{5}, {5, 5, 5}, {0, 0, 0}, {1e300, -1e300, 1e300}, {kNaN}}) {
    for (const bool logarithmic : {false, true}) {
      std::vector<double> x(y.size());
      for (size_t i = 0; i < x.size(); ++i) {
        x[i] = static_cast<double>(i);
      }
      const std::string svg =
          line_plot_svg({{.name = "a", .x = x, .y = y, .smoothing = 3}}, {.title = "t", .log_y = logarithmic});
      EXPECT_EQ(svg.find("nan"), std::string::npos);
      EXPECT_EQ(svg.find("inf"), std::string::npos);
      EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
    }
  }
}

TEST(LinePlot, KeepsPeaksWhenItThinsOutManyPoints) {
  std::vector<double> x(200000), y(200000, 1.0);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<double>(i);
  }
  y[77777] = 9.0;
  const std::string svg = line_plot_svg({{.name = "a", .x = x, .y = y}}, {.title = "t"});
  EXPECT_LT(svg.size(), 80000U);
  EXPECT_EQ(count(path_of(svg, "line s0"), " 81.55"), 1U) << "the peak stands 5 % below the top of the frame";
}

TEST(LinePlot, EscapesNames) {
  const std::string svg = line_plot_svg({{.name = "<a & \"b\">", .x = {0}, .y = {1}}}, {.title = "x < y\x01"});
  EXPECT_THAT(svg, testing::HasSubstr("&lt;a &amp; &quot;b&quot;&gt;"));
  EXPECT_THAT(svg, testing::HasSubstr(">x &lt; y<"));
}

TEST(LinePlot, RefusesSeriesOfDifferentLengths) {
  EXPECT_THROW(line_plot_svg({{.name = "a", .x = {0, 1}, .y = {1}}}, {}), Error);
  EXPECT_THROW(line_plot_svg({{.name = "a", .x = {0}, .y = {1}, .tooltips = {"a", "b"}}}, {}), Error);
}

TEST(Smoothed, AveragesWithoutBiasTowardsTheStart) {
  const auto flat = smoothed({4, 4, 4, 4}, 10);
  for (const double value : flat) {
    EXPECT_NEAR(value, 4, 1e-12);
  }
  const auto two = smoothed({1, 3}, 3);  // weights 1/4 and 1/2
  EXPECT_NEAR(two[1], (0.25 * 1 + 0.5 * 3) / 0.75, 1e-12);
  const auto gap = smoothed({1, kNaN, 1}, 3);
  EXPECT_TRUE(std::isnan(gap[1]));
  EXPECT_NEAR(gap[2], 1, 1e-12);
  EXPECT_EQ(smoothed({1, 5}, 1), (std::vector<double>{1, 5}));
}

TEST(HeatMap, ColoursItsCellsFromLowestToHighest) {
  const std::string svg = heat_map_svg(
      {.title = "experts",
       .x_label = "expert",
       .y_label = "layer",
       .row_names = {"0", "1"},
       .column_names = {"a", "b"},
       .rows = 2,
       .columns = 2,
       .values = {0, 1, kNaN, 0.5},
       .show_values = true});
  EXPECT_EQ(count(svg, "fill=\"#440154\""), 1U);
  EXPECT_EQ(count(svg, "fill=\"#fde725\""), 1U);
  EXPECT_EQ(count(svg, "fill=\"#21908d\""), 1U);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(HeatMap, RefusesSizesThatDoNotFit) {
  EXPECT_THROW(heat_map_svg({.rows = 2, .columns = 2, .values = {1, 2, 3}}), Error);
  EXPECT_THROW(heat_map_svg({.row_names = {"a"}, .rows = 2, .columns = 1, .values = {1, 2}}), Error);
  EXPECT_THAT(heat_map_svg({}), testing::EndsWith("</svg>\n"));
}

}  // namespace
}  // namespace lehr::draw
