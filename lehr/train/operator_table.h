// The table of `lehr train --profile`: time, throughput and limiting factor by kind of operator.
#pragma once

#include <array>
#include <map>
#include <string>

#include "lehr/config/node.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/train/machine_limits.h"

namespace lehr::train {

/// The totals of several steps of one rank.
struct OperatorReport {
  int64_t steps = 0;
  int64_t first_step = 0;  ///< 1-based.
  double seconds = 0;      ///< Measured by a separate clock.
  std::array<OperatorTotals, kOperatorKinds> kinds = {};
  std::map<ProductSize, OperatorTotals> products = {};
  MachineLimits limits = {};
  std::string source = {};  ///< The device of the limits, "NVIDIA H200 (data sheet)"; empty: this machine, measured.
  std::string dtype = {};   ///< The dtype of matmuls and of the limits: "float32".
  int64_t threads = 1;
  int64_t ranks = 1;
};

/// Returns the limiting factor of a kind of operator: "compute" or "memory" if the operations at the machine's peak, or
/// the bytes at its bandwidth, explain half of the time or more; "waiting" for data and other ranks; otherwise
/// "overhead": calls, threads that wait, kernels that reach neither limit.
const char* limit_of(OperatorKind kind, const OperatorTotals& totals, const MachineLimits& limits);

/// Returns the least time that the machine needs, as a share of the time taken: 0 to 1, and above if caches help.
double share_of_limit(const OperatorTotals& totals, const MachineLimits& limits);

/// Returns the table as text; lines end with a newline.
std::string to_text(const OperatorReport& report);
/// Returns all figures for programs, per step.
Node to_node(const OperatorReport& report);

}  // namespace lehr::train
