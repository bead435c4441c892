// The published pipeline schedules by name, and their programs.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "lehr/pipeline/program.h"
#include "lehr/pipeline/topology.h"

namespace lehr::pipeline {

/// Schedules that Lehr builds.
enum class Schedule {
  one_f_one_b,
  gpipe,
  looped_bfs,
  interleaved_1f1b,
  interleaved_zero_bubble,
  zero_bubble_h1,
  zero_bubble_h2,
  zero_bubble_v,
  dual_pipe_v,
  inference,
};

/// Properties of a schedule: its name, placement and numbers of stages.
struct ScheduleInfo {
  Schedule schedule;
  std::string_view name;  ///< The value of parallelism.pipeline_parallel_schedule: "1F1B".
  StageOrder placement;
  int64_t min_stages_per_rank;
  int64_t max_stages_per_rank;  ///< 0: no limit.
  int64_t default_stages_per_rank;
  bool has_backward;
  bool splits_backward;    ///< True if some backwards are split into I and W.
  std::string_view about;  ///< A phrase for tables and help.
};

/// All schedules, in the order of the enum.
std::span<const ScheduleInfo> all_schedules();
const ScheduleInfo& schedule_info(Schedule schedule);

/// Returns a schedule by its name, ignoring case. Throws a usage error that lists the known names and suggests the
/// nearest.
Schedule parse_schedule(std::string_view name);

/// A schedule and its sizes.
struct ScheduleOptions {
  Schedule schedule = Schedule::one_f_one_b;
  int64_t num_ranks = 1;
  int64_t num_stages_per_rank = 1;
  int64_t num_microbatches = 1;
};

/// Throws a usage error unless the schedule is defined for these numbers: the stages per rank that it supports, and,
/// for DualPipeV, at least twice as many micro-batches as ranks.
void check_schedule_options(const ScheduleOptions& options);

/// Returns the computations of a schedule, without communication (add_communication). The result is the same on all
/// ranks. Throws like check_schedule_options.
Program build_program(const ScheduleOptions& options);

}  // namespace lehr::pipeline
