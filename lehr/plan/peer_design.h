// Options of a plan for runs of other systems, whose design differs from Lehr's. For validation only: Lehr does not run
// any of them.
#pragma once

#include <string>

#include "lehr/config/fields.h"

namespace lehr::plan {

/// Techniques of another system that Lehr lacks. bench/published compares plans with published runs of such systems;
/// the defaults are Lehr's design.
struct PeerDesign {
  double tensor_parallel_overlap = 0;
  double context_parallel_overlap = 0;
  double expert_parallel_overlap = 0;
  double dispatch_bytes = 1;
  double sharding_overlap = 1;
  double replicate_bytes = 1;
  double tensor_parallel_gather_bytes = 1;
  double context_parallel_bytes = 1;
  double pointwise_bytes = 1;
  bool gathers_once = false;
  bool accumulates_in_matmul = false;
  double logit_bytes = 0;
  bool gathered_logits = false;
  bool whole_embedding = false;
  bool stops_recompute = false;
  double context_merge_bytes = 0;
  bool cuda_graphs = false;
  bool float8 = false;
  bool float8_experts = false;
  void fields(FieldVisitor& v);
  bool operator==(const PeerDesign&) const = default;

  /// Returns the fraction of the time of a collective over these axes that another system overlaps with computation.
  double overlap(const std::string& axes) const;
};

}  // namespace lehr::plan
