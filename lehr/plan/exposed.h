// Exposed communication of an action: one rank goes through its program, with the links to itself.
#pragma once

#include <vector>

#include "lehr/plan/links.h"
#include "lehr/plan/measure_stage.h"

namespace lehr::plan {

struct ExposedTime {
  double seconds = 0;                 ///< Of the whole action, computation and waits.
  std::vector<double> by_event = {};  ///< Until the end of each event.
  std::vector<double> by_call = {};   ///< The part in which the rank waited, by call.
};

/// Returns the time of an action whose events compute for `event_seconds`, and whose calls take `links` on idle links.
/// Calls of one group, and messages of a group in one direction, run one after the other; others share links. While the
/// rank computes, they progress at `overlap` of their speed. Other ranks are assumed to make the same calls at the same
/// time.
ExposedTime exposed_time(
    const ActionMeasurement& action,
    const std::vector<double>& event_seconds,
    const std::vector<LinkTime>& links,
    double overlap);

}  // namespace lehr::plan
