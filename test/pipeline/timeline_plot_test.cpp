#include "lehr/pipeline/timeline_plot.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/pipeline/schedules.h"

namespace lehr::pipeline {
namespace {

using testing::HasSubstr;
using testing::Not;

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) {
    ++found;
  }
  return found;
}

NamedTimeline timeline(
    const char* name, int64_t ranks, int64_t stages_per_rank, int64_t microbatches, const PipelineCosts& costs = {}) {
  return {name, simulate(build_program({parse_schedule(name), ranks, stages_per_rank, microbatches}), costs)};
}

TEST(TimelinePlot, DrawsABoxForEachActionWithItsMicrobatch) {
  const std::string svg = timeline_svg({timeline("ZBH1", 3, 1, 6)}, {.title = "a < b"});
  // The legend has one box of each kind.
  EXPECT_EQ(count(svg, "<rect class=\"F c0\""), 3 * 6 + 1);
  EXPECT_EQ(count(svg, "<rect class=\"I c0\""), 3 * 6 + 1);
  EXPECT_EQ(count(svg, "<rect class=\"W c0\""), 3 * 6 + 1);
  EXPECT_EQ(count(svg, "<rect class=\"B c0\""), 0);
  EXPECT_EQ(count(svg, " class=\"n0\">5</text>"), 3 * 3);
  EXPECT_EQ(count(svg, ">rank 2</text>"), 1);
  EXPECT_THAT(svg, HasSubstr("a &lt; b"));
  EXPECT_THAT(svg, HasSubstr("20 s, bubble 10.0 %"));
  EXPECT_EQ(count(svg, "<title>"), 1);
  EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
}

TEST(TimelinePlot, DrawsActionsToScale) {
  const std::string svg = timeline_svg({timeline("1F1B", 1, 1, 1)}, {.width = 382});  // 300 pixels for 3 seconds
  EXPECT_THAT(svg, HasSubstr("<rect class=\"F c0\" x=\"62\" y=\"88\" width=\"99\""));
  EXPECT_THAT(svg, HasSubstr("<rect class=\"B c0\" x=\"162\" y=\"88\" width=\"199\""));
}

TEST(TimelinePlot, DrawsLaterStagesPalerAndFramesOverlappedActions) {
  const std::string svg = timeline_svg({timeline("DualPipeV", 2, 2, 8, {.overlap = 0.5})}, {});
  EXPECT_EQ(count(svg, "<rect class=\"F c1\""), 2 * 8);
  EXPECT_THAT(svg, HasSubstr("paler: later stages of the rank"));
  const std::string text = to_text(build_program({Schedule::dual_pipe_v, 2, 2, 8}));
  EXPECT_GT(count(text, "|"), 0);
  EXPECT_EQ(count(svg, "<rect class=\"pair\""), count(text, "|"));
  EXPECT_THAT(svg, HasSubstr("height=\"11\""));  // half a row each
}

TEST(TimelinePlot, ShowsActionsOnHoverInAnHtmlPage) {
  const std::string html = timeline_html({timeline("1F1B", 2, 1, 2, {.update = 0.5})}, {.title = "<two> ranks"});
  EXPECT_THAT(html, testing::StartsWith("<!DOCTYPE html>"));
  EXPECT_THAT(html, HasSubstr("<title>&lt;two&gt; ranks</title>"));
  EXPECT_THAT(html, HasSubstr("<title>rank 1: 1F1, stage 1, micro-batch 1, 4 to 5 s</title>"));
  EXPECT_THAT(html, HasSubstr("<title>rank 0: update, 0.5 s</title>"));
  EXPECT_THAT(html, Not(HasSubstr("src=")));
  const std::string three = timeline_html({timeline("1F1B", 2, 1, 3)}, {});
  EXPECT_EQ(count(three, "<rect class=\"F c0 m2\""), 2) << "one of each rank, to find those of a micro-batch";
  EXPECT_EQ(count(html, "<svg class=\"zoom\""), 1);
  EXPECT_EQ(count(html, "class=\"ticks\" data-left=\"62\" data-right=\"1080\""), 1);
}

TEST(TimelinePlot, GivesNarrowActionsBoxesInAPageThatIsZoomedUpToALimit) {
  const auto boxes = [](int64_t microbatches) {
    const std::vector<NamedTimeline> one{timeline("1F1B", 1, 1, microbatches)};
    return std::pair(
        count(timeline_svg(one, {}), "<rect class=\"F c0"), count(timeline_html(one, {}), "<rect class=\"F c0"));
  };
  const auto [drawn, zoomed] = boxes(5000);
  EXPECT_EQ(zoomed, 5000U + 1);  // and that of the legend
  EXPECT_LT(drawn, 1100U);
  const auto [drawn_of_many, zoomed_of_many] = boxes(10'001);
  EXPECT_EQ(zoomed_of_many, drawn_of_many) << "20,002 actions";
}

TEST(TimelinePlot, DrawsMemoryBelowEachRow) {
  const PipelineCosts costs{.activation_bytes = {512.0 * 1024}};
  const std::string svg = timeline_svg({timeline("1F1B", 4, 1, 8, costs)}, {.memory = true});
  EXPECT_EQ(count(svg, "<path class=\"memory\""), 4);
  for (const char* peak : {">2 MiB<", ">1.5 MiB<", ">1 MiB<", ">512 KiB<"}) {
    EXPECT_EQ(count(svg, peak), 1) << peak;
  }
  EXPECT_EQ(count(timeline_svg({timeline("1F1B", 4, 1, 8, costs)}, {}), "memory\" d="), 0);
}

TEST(TimelinePlot, KeepsLargePipelinesSmall) {
  const std::string svg = timeline_svg({timeline("1F1B", 16, 1, 2048)}, {.row_height = 8});
  EXPECT_LT(svg.size(), 16u * 1100 * 110);  // at most about one box per pixel
  EXPECT_GT(count(svg, "<rect class=\"B c0\""), 16u * 300);
}

TEST(TimelinePlot, RefusesInvalidSizes) {
  EXPECT_THROW(timeline_svg({}, {}), Error);
  EXPECT_THROW(timeline_svg({timeline("1F1B", 1, 1, 1)}, {.width = 20}), Error);
  EXPECT_THROW(timeline_svg({timeline("1F1B", 1, 1, 1)}, {.row_height = 1}), Error);
}

// With LEHR_UPDATE_PICTURES in the environment, the test writes the picture instead.
TEST(TimelinePlot, DrawsThePictureOfTheDocumentation) {
  std::vector<NamedTimeline> timelines;
  for (const char* name : {"GPipe", "1F1B", "Interleaved1F1B", "ZBH1", "ZBH2", "ZBVZeroBubble", "DualPipeV"}) {
    const int64_t stages = schedule_info(parse_schedule(name)).default_stages_per_rank;
    const double share = 1.0 / static_cast<double>(stages);  // the same model in more stages
    timelines.push_back(
        timeline(name, 4, stages, 8, {.forward = {share}, .backward_input = {share}, .backward_weight = {share}}));
  }
  // 990 pixels for 33 units: whole numbers, so that every compiler rounds alike.
  const std::string svg = timeline_svg(
      timelines, {.title = "4 ranks, 8 micro-batches; F, I and W of a rank take 1 each", .unit = "", .width = 1072});
  const std::filesystem::path path =
      std::filesystem::path(LEHR_SOURCE_DIR) / "docs" / "picture" / "pipeline_schedules.svg";
  if (std::getenv("LEHR_UPDATE_PICTURES") != nullptr) {
    write_file_atomically(path, svg);
  }
  EXPECT_EQ(read_file(path), svg) << "run this test with LEHR_UPDATE_PICTURES=1 to draw it anew";
}

}  // namespace
}  // namespace lehr::pipeline
