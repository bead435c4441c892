// A pipeline schedule, as the list of actions of every rank.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lehr/pipeline/action.h"

namespace lehr::pipeline {

/// What every rank of a pipeline does in one step. A program may hold computations only, or communication as well
/// (add_communication). It is the same on all ranks, who compute it without a word to one another.
struct Program {
  int64_t num_microbatches = 0;
  std::vector<int64_t> rank_of_stage;       ///< By stage.
  std::vector<std::vector<Actions>> ranks;  ///< By rank, in order.

  int64_t num_stages() const { return static_cast<int64_t>(rank_of_stage.size()); }
  int64_t num_ranks() const { return static_cast<int64_t>(ranks.size()); }
  /// The stages of a rank, ascending.
  std::vector<int64_t> stages_of(int64_t rank) const;
  /// Whether anything of it belongs to a backward.
  bool has_backward() const;
  /// Whether it sends or receives anything.
  bool has_communication() const;
  bool operator==(const Program&) const = default;
};

/// The forwards of a program of computations, in their order and on their ranks: what a validation runs.
Program forward_only(const Program& program);

/// One line a rank, its actions parted by spaces.
std::string to_text(const Program& program);

/// The reverse of to_text, for any number of blanks between entries. Throws a usage error that names rank, position and
/// text.
Program parse_program(std::string_view text);

/// A program of these lists. A stage is on the rank that computes its forwards; stages and microbatches are counted by
/// the highest that is named. Throws a usage error if a stage is computed on two ranks or on none.
Program program_from_ranks(std::vector<std::vector<Actions>> ranks);

}  // namespace lehr::pipeline
