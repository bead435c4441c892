// The published pipeline schedules by name, and the programs they are.
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

/// What one must know of a schedule before building it.
struct ScheduleInfo {
  Schedule schedule;
  std::string_view name;  ///< As in parallelism.pipeline_parallel_schedule: "1F1B".
  Placement placement;
  int64_t min_stages_per_rank;
  int64_t max_stages_per_rank;  ///< 0: any number.
  int64_t default_stages_per_rank;
  bool has_backward;
  bool splits_backward;  ///< Whether some backwards come in two halves, I and W.
  std::string_view about;
};

/// All schedules, in the order of the enum.
std::span<const ScheduleInfo> all_schedules();
const ScheduleInfo& schedule_info(Schedule schedule);

/// A schedule by its name, whatever the case of the letters. Throws a usage error that lists the known names and
/// suggests the nearest.
Schedule parse_schedule(std::string_view name);

struct ScheduleOptions {
  Schedule schedule = Schedule::one_f_one_b;
  int64_t num_ranks = 1;
  int64_t num_stages_per_rank = 1;
  int64_t num_microbatches = 1;
};

/// Throws a usage error unless the schedule is defined for these numbers: the stages per rank that it takes, and, for
/// DualPipeV, at least twice as many microbatches as ranks.
void check_schedule_options(const ScheduleOptions& options);

/// The computations of a schedule, without communication (add_communication). The same on all ranks. Throws as
/// check_schedule_options does.
Program build_program(const ScheduleOptions& options);

}  // namespace lehr::pipeline
