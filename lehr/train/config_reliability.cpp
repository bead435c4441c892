// The [reliability] section of a run's config.
#include "lehr/base/error.h"
#include "lehr/train/config.h"

namespace lehr::train {

void ReliabilityConfig::fields(FieldVisitor& v) {
  v.optional(
      "hash_every_n_steps",
      hash_every_n_steps,
      "Steps between comparisons of replicas: ranks that hold the same weights compare 64-bit hashes of them and of "
      "their reduced gradients, before the update. 0: never.",
      at_least(0));
  v.optional(
      "recompute_every_n_steps",
      recompute_every_n_steps,
      "Steps between checks of the arithmetic: each rank runs forward and backward of a micro-batch (in a pipeline, of "
      "its stages) twice and compares all bits; a third run tells a transient error from a persistent one. 0: never.",
      at_least(0));
  v.choice(
      "on_corruption",
      on_corruption,
      {{"stop", OnCorruption::stop}, {"warn", OnCorruption::warn}},
      "Action on a difference that these checks find. stop: end with an error before the update; warn: log it.");
  v.optional(
      "spike_factor",
      spike_factor,
      "A loss above this factor times the median loss of the last spike_window steps is a spike. 0: no such check.",
      Rule{.min = 0});
  v.optional(
      "spike_window",
      spike_window,
      "Number of steps that the median covers; until there are as many, no loss is a spike.",
      positive());
  v.choice(
      "on_spike",
      on_spike,
      {{"warn", OnSpike::warn}, {"skip", OnSpike::skip}, {"stop", OnSpike::stop}},
      "Action on a spike. warn: log it; skip: skip the update and continue; stop: end with an error, without the "
      "update.");
  v.optional(
      "straggler_factor",
      straggler_factor,
      "A rank whose compute time, without waits for other ranks, is above this factor times the median of its "
      "pipeline stage is a straggler. The log names it. 0: no such check. CPU only.",
      Rule{.min = 0});
  v.optional(
      "straggler_window",
      straggler_window,
      "Steps between comparisons of the ranks' times, which are means over these steps.",
      positive());
}

void ReliabilityConfig::check(Problems& problems) const {
  if (spike_factor > 0 && spike_factor <= 1) {
    problems.add(
        "reliability.spike_factor", fmt::format("expected 0, or a factor above 1, such as 2; found {}", spike_factor));
  }
  if (straggler_factor > 0 && straggler_factor <= 1) {
    problems.add(
        "reliability.straggler_factor",
        fmt::format("expected 0, or a factor above 1, such as 1.3; found {}", straggler_factor));
  }
  const ReliabilityConfig usual;
  const auto require_use = [&](const char* key, bool is_set, bool is_used, const char* by) {
    if (is_set && !is_used) {
      problems.add(
          std::string("reliability.") + key, fmt::format("has no effect without {}; set that, too, or remove it", by));
    }
  };
  require_use("on_spike", on_spike != usual.on_spike, spike_factor != 0, "spike_factor");
  require_use(
      "straggler_window", straggler_window != usual.straggler_window, straggler_factor != 0, "straggler_factor");
  require_use(
      "on_corruption",
      on_corruption != usual.on_corruption,
      hash_every_n_steps != 0 || recompute_every_n_steps != 0,
      "hash_every_n_steps or recompute_every_n_steps");
}

void ReliabilityConfig::check_run(Problems& problems, const TrainingConfig& training) const {
  if (recompute_every_n_steps > 0 && training.cuda_graphs) {
    problems.add(
        "reliability.recompute_every_n_steps",
        "training.cuda_graphs does not run single micro-batches; leave one of the two keys out");
  }
}

}  // namespace lehr::train
