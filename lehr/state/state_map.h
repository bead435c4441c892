// State maps: how the tensors of a checkpoint become parameters, and back, as data.
//
// A map is a graph of names and operations without shapes or values. It is built from leaf maps, composed, inverted,
// cut to what a pipeline stage wants, and printed; bound to shapes (bound_map.h) it is checked, and then applied
// (map_stream.h). Everything here takes time in proportion to the number of tensors: a checkpoint of 70,000 tensors is
// mapped in a fraction of a second.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lehr/state/map_op.h"

namespace lehr::state {

using NameSet = std::unordered_set<std::string>;

/// A value of the graph under the name by which it is read or given.
struct MapPort {
  std::string name;
  size_t value = 0;
};

/// An operation on values of the graph. Each value comes from one input or step, and goes to one output or step at
/// most, which is why every map has an inverse.
struct MapStep {
  MapOp op;
  std::vector<size_t> inputs;
  std::vector<size_t> outputs;
};

/// Outputs that can be computed when the inputs of the group are there, and need no others: a connected part of the
/// graph.
struct StateGroup {
  std::vector<std::string> inputs;   ///< In the order of the map's inputs.
  std::vector<std::string> outputs;  ///< In the order of the map's outputs.
  std::vector<size_t> steps;         ///< Of StateMap::steps, in order.
};

/// From tensors named as `inputs` to tensors named as `outputs`.
class StateMap {
 public:
  /// The map of no tensors.
  StateMap() = default;
  /// A graph of `num_values` values. Throws a usage error that names a tensor that would be read, given or used twice,
  /// and for steps that are out of order.
  StateMap(std::vector<MapPort> inputs, std::vector<MapStep> steps, std::vector<MapPort> outputs, size_t num_values);

  const std::vector<MapPort>& inputs() const { return inputs_; }
  const std::vector<MapPort>& outputs() const { return outputs_; }
  /// In an order in which they can be done.
  const std::vector<MapStep>& steps() const { return steps_; }
  size_t num_values() const { return num_values_; }
  bool empty() const { return outputs_.empty(); }

  /// The names alone, in order.
  std::vector<std::string> input_names() const;
  std::vector<std::string> output_names() const;

  /// In the order of their first outputs.
  std::vector<StateGroup> groups() const;

  /// The way back. Throws a usage error if to() took away a part of what an input holds.
  StateMap inverse() const;

  /// What is needed to give these outputs, and no others: a pipeline stage's share of a checkpoint. Throws a usage
  /// error for a name that is no output.
  StateMap to(const NameSet& outputs) const;
  /// What can be computed from these inputs alone: what a pipeline stage can write of a checkpoint. Of tensors that are
  /// tied the first must be there. Other names are ignored.
  StateMap from(const NameSet& inputs) const;
  /// Every `total`-th group, by the order of the groups' first input names: equal work for processes that convert
  /// together. Throws a usage error unless 0 <= index < total.
  StateMap shard(int64_t total, int64_t index) const;
  /// The same map between longer names.
  StateMap scope(const std::string& input_prefix, const std::string& output_prefix) const;

  /// Look-ups and moves of graph nodes that building this map has taken, for the test that holds it to be linear.
  int64_t work() const { return work_; }

 private:
  friend class StateMapBuilder;
  /// The steps that lead to `needed` values, to which it adds what they read of the values that are `there`.
  std::vector<bool> steps_towards(std::vector<bool>& needed, const std::vector<bool>& there) const;
  StateMap keep(const std::vector<bool>& steps, const std::vector<bool>& values) const;

  std::vector<MapPort> inputs_;
  std::vector<MapStep> steps_;
  std::vector<MapPort> outputs_;
  size_t num_values_ = 0;
  int64_t work_ = 0;
};

/// Tensors that keep their names.
StateMap identity(const std::vector<std::string>& names);
StateMap rename(const std::string& source, const std::string& target);
/// All pairs (source, target).
StateMap rename(const std::vector<std::pair<std::string, std::string>>& names);
/// Tensors of a child module as if it were alone: `parent`.name becomes name.
StateMap select_child(const std::string& parent, const std::vector<std::string>& names);
/// The operation of that name in map_op.h.
StateMap stack(const std::vector<std::string>& sources, const std::string& target, int64_t dim);
StateMap unstack(const std::string& source, const std::vector<std::string>& targets, int64_t dim);
StateMap concatenate(
    const std::vector<std::string>& sources, const std::string& target, int64_t dim, const std::vector<int64_t>& sizes);
StateMap split(
    const std::string& source, const std::vector<std::string>& targets, int64_t dim, const std::vector<int64_t>& sizes);
StateMap transpose(const std::string& source, const std::string& target, int64_t dim0, int64_t dim1);
StateMap squeeze(const std::string& source, const std::string& target, int64_t dim);
StateMap unsqueeze(const std::string& source, const std::string& target, int64_t dim);
/// Elements `range` of a dimension that has `size`. Its inverse gives that part of `source` and no more.
StateMap slice(const std::string& source, const std::string& target, int64_t dim, Range range, int64_t size);
/// One stored tensor for several names; on the way back the first one's is stored, once.
StateMap tie(const std::string& source, const std::vector<std::string>& targets);

/// One map behind the other. What a map reads and none before it gives is read from the input; what is given and not
/// read goes through to the output. Throws a usage error that names a tensor that would be given or read twice.
StateMap sequential(const std::vector<StateMap>& maps);
/// Maps beside each other. Throws a usage error that names a tensor that two of them read or give.
StateMap parallel(const std::vector<StateMap>& maps);

}  // namespace lehr::state
