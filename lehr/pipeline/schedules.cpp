// The table of schedules, and the construction of a program from a schedule's name.
#include "lehr/pipeline/schedules.h"

#include <array>
#include <string>
#include <vector>

#include "lehr/base/error.h"
#include "lehr/config/suggest.h"
#include "lehr/pipeline/schedule_families.h"

namespace lehr::pipeline {
namespace {

constexpr std::array<ScheduleInfo, 10> kSchedules{{
    {Schedule::one_f_one_b,
     "1F1B",
     StageOrder::loop,
     1,
     1,
     1,
     true,
     false,
     "one forward, one backward; at most P - r micro-batches alive on rank r"},
    {Schedule::gpipe, "GPipe", StageOrder::loop, 1, 1, 1, true, false, "all forwards, then all backwards"},
    {Schedule::looped_bfs,
     "LoopedBFS",
     StageOrder::loop,
     1,
     0,
     2,
     true,
     false,
     "all forwards of one stage after the other, then all backwards"},
    {Schedule::interleaved_1f1b,
     "Interleaved1F1B",
     StageOrder::loop,
     2,
     0,
     2,
     true,
     false,
     "1F1B over several smaller stages per rank, which divides the bubble by their number"},
    {Schedule::interleaved_zero_bubble,
     "InterleavedZeroBubble",
     StageOrder::loop,
     1,
     0,
     2,
     true,
     true,
     "interleaved, with weight gradients moved into the bubble"},
    {Schedule::zero_bubble_h1,
     "ZBH1",
     StageOrder::loop,
     1,
     1,
     1,
     true,
     true,
     "1F1B with weight gradients moved into the bubble, in the memory of 1F1B's first rank"},
    {Schedule::zero_bubble_h2,
     "ZBH2",
     StageOrder::loop,
     1,
     1,
     1,
     true,
     true,
     "like ZBH1, with about twice the warm-up and memory: no rank waits between its first and last action"},
    {Schedule::zero_bubble_v,
     "ZBVZeroBubble",
     StageOrder::v,
     2,
     2,
     2,
     true,
     true,
     "zero bubble over stages placed as a V, in the memory of 1F1B's first rank"},
    {Schedule::dual_pipe_v,
     "DualPipeV",
     StageOrder::v,
     2,
     2,
     2,
     true,
     true,
     "forwards and backwards in pairs that may overlap each other's communication, over a V"},
    {Schedule::inference, "Inference", StageOrder::loop, 1, 0, 1, false, false, "forwards only"},
}};

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return result;
}

std::vector<std::vector<Actions>> build_ranks(const ScheduleOptions& options) {
  const auto [schedule, ranks, stages, microbatches] = options;
  switch (schedule) {
    case Schedule::one_f_one_b:
      return build_1f1b(ranks, microbatches);
    case Schedule::gpipe:
    case Schedule::looped_bfs:
      return build_looped_bfs(ranks, stages, microbatches, BackwardPass::full);
    case Schedule::inference:
      return build_looped_bfs(ranks, stages, microbatches, BackwardPass::none);
    case Schedule::interleaved_1f1b:
      return build_interleaved(ranks, stages, microbatches, BackwardPass::full);
    case Schedule::interleaved_zero_bubble:
      return build_interleaved(ranks, stages, microbatches, BackwardPass::split);
    case Schedule::zero_bubble_h1:
      return build_zero_bubble_h(ranks, microbatches, 1);
    case Schedule::zero_bubble_h2:
      return build_zero_bubble_h(ranks, microbatches, 2);
    case Schedule::zero_bubble_v:
      return build_zero_bubble_v(ranks, microbatches);
    case Schedule::dual_pipe_v:
      return build_dual_pipe_v(ranks, microbatches);
  }
  fail("pipeline: schedule number {} has no builder", static_cast<int>(schedule));
}

}  // namespace

std::span<const ScheduleInfo> all_schedules() {
  return kSchedules;
}

const ScheduleInfo& schedule_info(Schedule schedule) {
  return kSchedules[static_cast<size_t>(schedule)];
}

Schedule parse_schedule(std::string_view name) {
  std::vector<std::string> known;
  for (const ScheduleInfo& info : kSchedules) {
    if (lower(info.name) == lower(name)) {
      return info.schedule;
    }
    known.push_back(lower(info.name));
  }
  std::string names;
  std::string nearest;
  const auto meant = suggest(lower(name), known);
  for (const ScheduleInfo& info : kSchedules) {
    names += (names.empty() ? "" : ", ") + std::string(info.name) + (info.has_backward ? "" : " (forward only)");
    if (meant && lower(info.name) == *meant) {
      nearest = fmt::format("; did you mean {}?", info.name);
    }
  }
  fail("pipeline schedule \"{}\": expected one of {}{}", name, names, nearest);
}

void check_schedule_options(const ScheduleOptions& options) {
  const ScheduleInfo& info = schedule_info(options.schedule);
  require(
      options.num_ranks >= 1, "pipeline schedule {}: expected at least 1 rank, found {}", info.name, options.num_ranks);
  require(
      options.num_microbatches >= 1,
      "pipeline schedule {}: expected at least 1 micro-batch, found {}",
      info.name,
      options.num_microbatches);
  const int64_t low = info.min_stages_per_rank;
  const int64_t high = info.max_stages_per_rank;
  const bool good = options.num_stages_per_rank >= low && (high == 0 || options.num_stages_per_rank <= high);
  std::string expected = fmt::format("at least {} stage{}", low, low == 1 ? "" : "s");
  if (high != 0) {
    expected = low == high ? fmt::format("exactly {} stage{}", low, low == 1 ? "" : "s")
                           : fmt::format("{} to {} stages", low, high);
  }
  std::string advice;
  if (info.schedule == Schedule::interleaved_1f1b) {
    advice = "; with one stage per rank use 1F1B";
  } else if (info.schedule == Schedule::one_f_one_b) {
    advice = "; with several stages per rank use Interleaved1F1B";
  }
  require(
      good,
      "pipeline schedule {}: expected {} per rank, found {}{}",
      info.name,
      expected,
      options.num_stages_per_rank,
      advice);
  require(
      options.schedule != Schedule::dual_pipe_v || options.num_microbatches >= 2 * options.num_ranks,
      "pipeline schedule DualPipeV: expected at least {} micro-batches, two for each of {} ranks, found {}; use more "
      "micro-batches or ZBVZeroBubble",
      2 * options.num_ranks,
      options.num_ranks,
      options.num_microbatches);
}

Program build_program(const ScheduleOptions& options) {
  check_schedule_options(options);
  return {
      .num_microbatches = options.num_microbatches,
      .rank_of_stage =
          place_stages(schedule_info(options.schedule).placement, options.num_ranks, options.num_stages_per_rank),
      .ranks = build_ranks(options),
  };
}

}  // namespace lehr::pipeline
