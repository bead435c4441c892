// Parameters that two pipeline stages use: an embedding table that is tied to the head.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lehr/mesh/group.h"
#include "lehr/nn/module.h"
#include "lehr/train/stage_layout.h"

namespace lehr::train {

/// The first stage with such a parameter trains it. Later stages hold a copy, which sends its gradient and receives the
/// value. All ranks of a pipeline must call the same functions in the same order.
class StageCopies {
 public:
  /// `models` are this rank's, by stage. Marks the copies in them (nn::Parameter::make_copy); call it after the stages
  /// are laid out. `pp` and `models` must outlive the object.
  StageCopies(
      const StageLayout& layout, const std::vector<std::pair<int64_t, nn::Model*>>& models, const mesh::Group& pp);

  /// Pairs of ranks along pp that send to each other.
  std::set<std::pair<int64_t, int64_t>> routes() const;

  /// Adds the copies' gradients to those of their originals.
  void collect_gradients() const;
  void clear_gradients() const;
  /// Sets the copies to the values of their originals; with `only_trained` those that a step may have changed.
  void refresh(bool only_trained) const;

 private:
  struct Pair {
    int64_t rank, copy_rank;               // along pp
    nn::ParameterPtr parameter = nullptr;  // on the rank that holds it
    nn::ParameterPtr copy = nullptr;
  };
  std::vector<Pair> pairs_;
  const mesh::Group& pp_;
};

}  // namespace lehr::train
