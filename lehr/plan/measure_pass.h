// Measures a stage's passes: reads the meters of memory, operators and collectives while they run.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "lehr/meter/memory_meter.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/plan/stage_run.h"

namespace lehr::plan {

/// Reads the meters during the actions of a stage. References must outlive the object.
class Measuring {
 public:
  Measuring(StageRun& run, MemoryMeter& memory, SeenCollectives& seen) : run_(run), memory_(memory), seen_(seen) {}

  /// Returns live bytes without unsharded parameters, and those of unsharded parameters.
  int64_t live() const { return memory_.now() - gathered(); }
  int64_t gathered() const { return run_.sharded() != nullptr ? run_.sharded()->gathered_bytes() : 0; }

  /// Measures `action`. Peak and kept count beyond `rest`.
  ActionMeasurement measure(int64_t rest, const std::function<void()>& action);
  /// Within an action: the next event is at its border.
  void mark();

 private:
  void observe(size_t number, bool waited);
  void add_event(ActionEvent event);
  void add_calls();

  StageRun& run_;
  MemoryMeter& memory_;
  SeenCollectives& seen_;
  ActionMeasurement now_;
  OperationMeter* operations_ = nullptr;
  size_t first_ = 0;             // call of the action
  std::vector<size_t> earlier_;  // calls of actions before it that it waits for
};

/// Runs passes of a stage, and keeps the first measurement of each place (PassPlace). References must outlive the
/// object.
class Passes {
 public:
  Passes(StageRun& run, Measuring& measuring, std::map<PassPlace, ActionMeasurement>& found)
      : run_(run), measuring_(measuring), found_(found) {}

  /// The step begins with its first forward, and ends with its last backward or wgrad.
  void begin_step(int64_t microbatches);
  /// Runs and measures the next pass of this kind, of the next micro-batch.
  ActionMeasurement run(pipeline::ActionKind kind, int64_t rest = 0);

 private:
  void act(pipeline::ActionKind kind);

  StageRun& run_;
  Measuring& measuring_;
  std::map<PassPlace, ActionMeasurement>& found_;
  PassOrder order_;
  int64_t microbatches_ = 0;
  int64_t forwards_ = 0;
  int64_t backwards_ = 0;         // whole ones and dgrads
  std::deque<int64_t> deferred_;  // micro-batches whose wgrads are left
  bool begins_ = false;
};

}  // namespace lehr::plan
