// Output of a plan: text report, JSON and pictures.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lehr/config/node.h"
#include "lehr/plan/plan.h"

namespace lehr::plan {

/// Formats rows under a header with aligned columns: the first left, the others right. Every line is indented by two
/// spaces.
std::string text_table(const std::vector<std::string>& head, const std::vector<std::vector<std::string>>& rows);

/// Returns the report: model, machine, mesh; step time, tokens/s, MFU; whether it fits; breakdown of the step time;
/// memory by rank and kind; communication; other schedules; warnings.
std::string report_text(const Plan& plan);

/// Returns the same numbers as JSON: seconds, bytes, shares from 0 to 1.
Node report_json(const Plan& plan);

/// Draws the peak memory of each rank along pp, stacked by kind, with a line at the usable memory of the device.
std::string memory_svg(const Plan& plan);

/// Writes report.txt, plan.json, memory.svg, timeline.svg, and pages to point at (.html) into `folder`, which is
/// created if needed.
void write_plan(const Plan& plan, const std::filesystem::path& folder);

}  // namespace lehr::plan
