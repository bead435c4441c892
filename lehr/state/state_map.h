// State maps: the mapping from checkpoint tensors to parameters, and back, as data (torchtitan's state-dict adapter).
//
// A map is a graph of names and operations without shapes or values. It is built from leaf maps, composed, inverted,
// restricted to the tensors of a pipeline stage, and printed. Bound to shapes (bound_map.h) it is validated, and then
// applied (map_stream.h). All functions take time linear in the number of tensors: a checkpoint of 70,000 tensors is
// mapped in a fraction of a second.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lehr/state/map_op.h"

namespace lehr::state {

/// Names of tensors.
using NameSet = std::unordered_set<std::string>;

/// A value of the graph and its name as an input or output.
struct MapPort {
  std::string name;
  size_t value = 0;
};

/// An operation on values of the graph. Each value is produced by one input or step, and consumed by at most one output
/// or step, so every map has an inverse.
struct MapStep {
  MapOp op;
  std::vector<size_t> inputs;
  std::vector<size_t> outputs;
};

/// A connected part of the graph: outputs that can be computed from the inputs of the group alone.
struct StateGroup {
  std::vector<std::string> inputs;   ///< In the order of the map's inputs.
  std::vector<std::string> outputs;  ///< In the order of the map's outputs.
  std::vector<size_t> steps;         ///< Indices in StateMap::steps, in order.
};

/// A map from tensors named `inputs` to tensors named `outputs`.
class StateMap {
 public:
  /// The map of no tensors.
  StateMap();
  // Defined in state_map.cpp, so that not every file compiles them.
  StateMap(const StateMap& other);
  StateMap(StateMap&& other) noexcept;
  StateMap& operator=(const StateMap& other);
  StateMap& operator=(StateMap&& other) noexcept;
  ~StateMap();
  /// A graph of `num_values` values. Throws a usage error that names a tensor that would be read or produced twice, and
  /// for steps that are out of order.
  StateMap(std::vector<MapPort> inputs, std::vector<MapStep> steps, std::vector<MapPort> outputs, size_t num_values);

  const std::vector<MapPort>& inputs() const { return inputs_; }
  const std::vector<MapPort>& outputs() const { return outputs_; }
  /// Returns the steps in an order in which they can be executed.
  const std::vector<MapStep>& steps() const { return steps_; }
  size_t num_values() const { return num_values_; }
  bool empty() const { return outputs_.empty(); }

  /// Return the names alone, in order.
  std::vector<std::string> input_names() const;
  std::vector<std::string> output_names() const;

  /// Returns the groups in the order of their first outputs.
  std::vector<StateGroup> groups() const;

  /// Returns the inverse. Throws a usage error if to() removed a part of an input.
  StateMap inverse() const;

  /// Returns the part of the map that these outputs need: a pipeline stage's part of a checkpoint. Throws a usage error
  /// for a name that is not an output.
  StateMap to(const NameSet& outputs) const;
  /// Returns the part of the map that can be computed from these inputs alone: the tensors of a checkpoint that a
  /// pipeline stage can write. Of tied tensors the first must be present. Other names are ignored.
  StateMap from(const NameSet& inputs) const;
  /// Returns every `total`-th group, by the order of the groups' first input names: a share of the work for processes
  /// that convert together. Throws a usage error unless 0 <= index < total.
  StateMap shard(int64_t total, int64_t index) const;
  /// Returns the same map with prefixes added to all names.
  StateMap scope(const std::string& input_prefix, const std::string& output_prefix) const;

  /// Returns the number of graph look-ups and moves spent on this map, for the test that it is linear.
  int64_t work() const { return work_; }

 private:
  friend class StateMapBuilder;
  /// Returns the steps that lead to `needed` values. Adds to `needed` the values they read that are in `there`.
  std::vector<bool> steps_towards(std::vector<bool>& needed, const std::vector<bool>& there) const;
  StateMap keep(const std::vector<bool>& steps, const std::vector<bool>& values) const;

  std::vector<MapPort> inputs_;
  std::vector<MapStep> steps_;
  std::vector<MapPort> outputs_;
  size_t num_values_ = 0;
  int64_t work_ = 0;
};

/// A map of tensors that keep their names.
StateMap identity(const std::vector<std::string>& names);
StateMap rename(const std::string& source, const std::string& target);
/// Renames all pairs (source, target).
StateMap rename(const std::vector<std::pair<std::string, std::string>>& names);
/// The following maps consist of the operation of that name in map_op.h.
StateMap stack(const std::vector<std::string>& sources, const std::string& target, int64_t dim);
StateMap unstack(const std::string& source, const std::vector<std::string>& targets, int64_t dim);
StateMap concatenate(
    const std::vector<std::string>& sources, const std::string& target, int64_t dim, const std::vector<int64_t>& sizes);
StateMap split(
    const std::string& source, const std::vector<std::string>& targets, int64_t dim, const std::vector<int64_t>& sizes);
/// Joins parts of a dimension, which they cover once, in this order: a split and a concatenation. Throws a usage error
/// for parts that overlap or leave gaps.
StateMap reorder(const std::string& source, const std::string& target, int64_t dim, const std::vector<Range>& parts);
StateMap transpose(const std::string& source, const std::string& target, int64_t dim0, int64_t dim1);
StateMap squeeze(const std::string& source, const std::string& target, int64_t dim);
StateMap unsqueeze(const std::string& source, const std::string& target, int64_t dim);
/// Takes the elements `range` of a dimension that has `size`. Its inverse produces only that part of `source`.
StateMap slice(const std::string& source, const std::string& target, int64_t dim, Range range, int64_t size);
/// One stored tensor for several names; the inverse stores the tensor of the first name, once.
StateMap tie(const std::string& source, const std::vector<std::string>& targets);

/// Composes maps one after the other. Tensors that a map reads and no earlier map produces are read from the input;
/// tensors that are produced and not read are outputs. Throws a usage error that names a tensor that would be produced
/// or read twice.
StateMap sequential(const std::vector<StateMap>& maps);
/// Combines independent maps. Throws a usage error that names a tensor that two of them read or produce.
StateMap parallel(const std::vector<StateMap>& maps);

}  // namespace lehr::state
