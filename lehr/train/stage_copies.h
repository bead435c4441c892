// Parameters that two stages of a pipeline read: a table that is tied to the head.
#pragma once

#include <string>
#include <vector>

#include "lehr/mesh/group.h"
#include "lehr/nn/module.h"
#include "lehr/train/stage_layout.h"

namespace lehr::train {

/// The first stage that has such a parameter trains it. Later ones hold a copy: the gradient goes there, the value
/// comes back. All ranks of a pipeline call the same functions in the same order.
class StageCopies {
 public:
  /// `models` are this rank's, by stage. Marks the copies in them (nn::Parameter::make_copy); call it when the stages
  /// are laid out. `pp` and `models` must outlive the object.
  StageCopies(
      const StageLayout& layout, const std::vector<std::pair<int64_t, nn::Model*>>& models, const mesh::Group& pp);

  /// Adds the copies' gradients to those of what they are copies of.
  void collect_gradients() const;
  void clear_gradients() const;
  /// Gives the copies the values of what they are copies of.
  void refresh() const;

 private:
  struct Pair {
    int64_t rank, copy_rank;               // along pp
    nn::ParameterPtr parameter = nullptr;  // if this is the rank that has it
    nn::ParameterPtr copy = nullptr;
  };
  std::vector<Pair> pairs_;
  const mesh::Group& pp_;
};

}  // namespace lehr::train
