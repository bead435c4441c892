// A pipeline schedule as a program: the list of actions of every rank.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lehr/pipeline/action.h"

namespace lehr::pipeline {

/// The actions of every rank of a pipeline in one step. A program holds computations only, or communication as well
/// (add_communication). All ranks compute the same program without communicating.
struct Program {
  int64_t num_microbatches = 0;
  std::vector<int64_t> rank_of_stage;       ///< Indexed by stage.
  std::vector<std::vector<Actions>> ranks;  ///< Indexed by rank, each in order of execution.

  int64_t num_stages() const { return static_cast<int64_t>(rank_of_stage.size()); }
  int64_t num_ranks() const { return static_cast<int64_t>(ranks.size()); }
  /// Returns the stages of a rank, ascending.
  std::vector<int64_t> stages_of(int64_t rank) const;
  /// Returns whether any action belongs to a backward pass.
  bool has_backward() const;
  /// Returns whether any action is a send or a receive.
  bool has_communication() const;
  bool operator==(const Program&) const = default;
};

/// Prints one line per rank, its entries separated by spaces.
std::string to_text(const Program& program);

/// The inverse of to_text. Accepts any number of blanks between entries. Throws a usage error that names rank, position
/// and text.
Program parse_program(std::string_view text);

/// Returns a program of these lists. A stage belongs to the rank that computes its forwards. The numbers of stages and
/// micro-batches follow from the highest ones named. Throws a usage error if a stage is computed on two ranks or on
/// none.
Program program_from_ranks(std::vector<std::vector<Actions>> ranks);

}  // namespace lehr::pipeline
