// Draws the peak memory of ranks: one bar per rank, stacked by kind.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lehr/draw/plot_scale.h"
#include "lehr/draw/svg_text.h"
#include "lehr/pipeline/svg_elements.h"
#include "lehr/plan/report.h"

namespace lehr::plan {

namespace {
using pipeline::text_element;

constexpr double kWidth = 900;
constexpr double kLeft = 60;
constexpr double kRight = 20;
constexpr double kTop = 74;
constexpr double kHeight = 300;
constexpr double kGigabyte = 1e9;

const char* const kStyle = R"(<style>
text { font-family: system-ui, sans-serif; font-size: 12px; fill: #57606a; }
.title { font-size: 15px; font-weight: 600; fill: #1f2328; }
.page { fill: #ffffff; }
.grid { stroke: #d5dae0; stroke-width: 1; }
.limit { stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 6 4; }
.k0 { fill: #2166d1; } .k1 { fill: #1a8754; } .k2 { fill: #7a4fc4; } .k3 { fill: #0b8ba0; }
.k4 { fill: #c2570c; } .k5 { fill: #bf3989; } .k6 { fill: #8c959f; }
@media (prefers-color-scheme: dark) {
text { fill: #9da7b3; }
.title { fill: #e6edf3; }
.page { fill: #0d1117; }
.grid { stroke: #3a424d; }
.limit { stroke: #ff7b72; }
.k0 { fill: #6cb0ff; } .k1 { fill: #56d364; } .k2 { fill: #b392f0; } .k3 { fill: #5fd4e3; }
.k4 { fill: #ff9e64; } .k5 { fill: #ff8ac6; } .k6 { fill: #6e7681; }
}
</style>
)";

std::string legend() {
  std::string text;
  double x = kLeft;
  for (size_t kind = 0; kind < kMemoryKinds; ++kind) {
    const std::string_view name = name_of(static_cast<MemoryKind>(kind));
    text += pipeline::box_element({x, 40, 10, 10}, fmt::format("k{}", kind), "");
    text += text_element(x + 14, 49, "", name);
    x += 30 + 6.6 * static_cast<double>(name.size());
  }
  return text;
}

std::string bar(const MemoryByKind& held, double x, double width, double per_pixel, const std::string& rank) {
  std::string text;
  double y = kTop + kHeight;
  for (size_t kind = 0; kind < kMemoryKinds; ++kind) {
    const double height = held.bytes[kind] / per_pixel;
    if (height > 0) {
      y -= height;
      const std::string hover = fmt::format(
          "{}{}: {:.2f} GB of {:.2f}",
          rank,
          name_of(static_cast<MemoryKind>(kind)),
          held.bytes[kind] / kGigabyte,
          held.total() / kGigabyte);
      text += pipeline::box_element({x, y, width, height}, fmt::format("k{}", kind), hover);
    }
  }
  return text;
}
}  // namespace

std::string memory_svg(const Plan& plan) {
  const double device = plan.machine.memory_gb * kGigabyte;
  const double top = 1.05 * std::max(device, plan.peak_bytes());
  const double per_pixel = top / kHeight;
  const double height = kTop + kHeight + 50;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\">\n",
      pixel(kWidth),
      pixel(height));
  svg += kStyle;
  svg += pipeline::box_element({0, 0, kWidth, height}, "page", "");
  svg += text_element(
      kLeft, 24, " class=\"title\"", fmt::format("Peak memory of a device, GB: {}", plan.run.config.job.description));
  svg += legend();
  const double step = draw::tick_step(top / kGigabyte, 10);
  for (double tick = 0; tick * kGigabyte <= top; tick += step) {
    const double y = kTop + kHeight - tick * kGigabyte / per_pixel;
    svg += pipeline::line_element("grid", kLeft, y, kWidth - kRight, y);
    svg += text_element(kLeft - 8, y + 4, " text-anchor=\"end\"", fmt::format("{:.4g}", tick));
  }
  const double slot = (kWidth - kLeft - kRight) / static_cast<double>(plan.memory.size());
  const double width = std::min(120.0, 0.7 * slot);
  const auto every = static_cast<size_t>(std::ceil(28 / slot));  // label every n-th rank, so that labels do not touch
  for (size_t rank = 0; rank < plan.memory.size(); ++rank) {
    const double middle = kLeft + slot * (static_cast<double>(rank) + 0.5);
    const bool many = plan.memory.size() > 1;
    svg +=
        bar(plan.memory[rank].peak, middle - width / 2, width, per_pixel, many ? fmt::format("rank {}, ", rank) : "");
    if (rank % every == 0) {
      svg += text_element(
          middle, kTop + kHeight + 18, " text-anchor=\"middle\"", many ? std::to_string(rank) : "every rank");
    }
  }
  const double limit = kTop + kHeight - plan.machine.usable_bytes() / per_pixel;
  svg += pipeline::line_element("limit", kLeft, limit, kWidth - kRight, limit);
  svg += text_element(
      kWidth - kRight,
      limit - 5,
      " text-anchor=\"end\"",
      fmt::format("{:.4g} usable", plan.machine.usable_bytes() / kGigabyte));
  if (plan.memory.size() > 1) {
    svg += text_element(kLeft, height - 10, "", "rank along the pipeline");
  }
  return svg + "</svg>\n";
}

}  // namespace lehr::plan
