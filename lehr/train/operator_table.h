// The table of `lehr train --profile`: time by kind of operator, what was reached in it, and what it is limited by.
#pragma once

#include <array>
#include <map>
#include <string>

#include "lehr/base/node.h"
#include "lehr/base/operator_profile.h"
#include "lehr/train/machine_limits.h"

namespace lehr::train {

/// What some steps of one rank took, all steps together.
struct OperatorReport {
  int64_t steps = 0;
  int64_t first_step = 0;  ///< 1-based.
  double seconds = 0;      ///< By a clock of its own.
  std::array<OperatorTotals, kOperatorKinds> kinds = {};
  std::map<ProductSize, OperatorTotals> products = {};
  MachineLimits limits = {};
  std::string dtype = {};  ///< That products compute in, as the limits: "float32".
  int64_t threads = 1;
  int64_t ranks = 1;
};

/// What explains most of a time: operations at the machine's peak, or bytes at its bandwidth, if either explains half
/// of it; otherwise overhead: calls, threads that wait, kernels that reach neither. "waiting" for data and other ranks.
const char* limit_of(OperatorKind kind, const OperatorTotals& totals, const MachineLimits& limits);

/// Seconds that the machine needs at least, of those that were taken: 0 to 1, and above where caches help.
double share_of_limit(const OperatorTotals& totals, const MachineLimits& limits);

/// For people; lines end with a newline.
std::string to_text(const OperatorReport& report);
/// For programs, all figures of one step.
Node to_node(const OperatorReport& report);

}  // namespace lehr::train
