// A plan for people and for programs: the report, the same as JSON, and the pictures.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lehr/base/node.h"
#include "lehr/plan/plan.h"

namespace lehr::plan {

/// Rows under a head, columns aligned: the first to the left, the others to the right. Two blanks stand before each
/// row.
std::string text_table(const std::vector<std::string>& head, const std::vector<std::vector<std::string>>& rows);

/// The report: model, machine, mesh; step time, tokens/s, MFU; whether it fits; where the time goes; memory by rank and
/// kind; communication; other schedules; warnings.
std::string report_text(const Plan& plan);

/// The same numbers: seconds, bytes, shares from 0 to 1.
Node report_json(const Plan& plan);

/// What each rank along pp holds at its fullest moment, stacked by kind, with the line of what the device has.
std::string memory_svg(const Plan& plan);

/// Writes report.txt, plan.json, memory.svg, timeline.svg and timeline.html into `folder`, which is made if need be.
void write_plan(const Plan& plan, const std::filesystem::path& folder);

}  // namespace lehr::plan
