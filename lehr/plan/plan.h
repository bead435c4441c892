// The prediction of a training run: time, memory, bubble and communication.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lehr/descriptor/model_args.h"
#include "lehr/pipeline/timeline.h"
#include "lehr/plan/goodput.h"
#include "lehr/plan/machine.h"
#include "lehr/plan/memory.h"
#include "lehr/plan/peer_design.h"
#include "lehr/plan/resolved_run.h"
#include "lehr/plan/stage_costs.h"

namespace lehr::plan {

/// The prediction of a schedule for the same mesh and batch.
struct SchedulePrediction {
  std::string name;
  int64_t stages_per_rank = 1;
  double step_seconds = 0;
  double bubble_share = 0;
  double peak_bytes = 0;  ///< The highest peak of any rank.
  bool fits = false;
  bool configured = false;
};

/// A part of the step's time on the busiest rank.
struct TimeShare {
  std::string name;  ///< "matmuls", "waiting for tp", "pipeline bubble"
  double seconds = 0;
};

/// The prediction of a run.
struct Plan {
  ResolvedRun run;
  Machine machine;
  PeerDesign peer;
  std::string recompute;  ///< RecomputeChoice::describe() of mode "auto", which `run.config` has replaced; else empty.
  descriptor::ModelCounts counts;
  std::string schedule;  ///< "1F1B"; "none" on one stage.
  std::vector<int64_t> rank_of_stage;
  std::vector<PlannedStage> stages;
  pipeline::Timeline timeline;
  std::vector<RankMemory> memory;  ///< By rank along pp.

  double step_seconds = 0;
  double tokens_per_second = 0;  ///< Over all devices.
  double mfu = 0;                ///< Model FLOPs utilization with causal attention counted.
  double mfu_full = 0;           ///< The same with full attention counted, as torchtitan does.
  double bubble_share = 0;
  std::vector<TimeShare> time;                   ///< Sums to step_seconds; longest first.
  std::vector<CommunicationCost> communication;  ///< Per step of the busiest rank, including pp.
  std::string bottleneck;                        ///< A sentence.

  std::vector<int64_t> layers_by_stage() const;
  size_t fullest_rank = 0;  ///< The rank along pp with the highest peak.
  double peak_bytes() const { return memory[fullest_rank].peak.total(); }
  bool fits() const { return peak_bytes() <= machine.usable_bytes(); }

  std::vector<SchedulePrediction> schedules;  ///< Best first; empty on one stage.
  std::optional<GoodputPrediction> goodput;   ///< Of machines whose device_mtbf_hours is known.
  std::vector<std::string> warnings;
};

}  // namespace lehr::plan
