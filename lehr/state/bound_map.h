// A state map with the shapes of its tensors: checked, countable and printable before any value is read.
#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "lehr/state/safetensors_header.h"
#include "lehr/state/state_map.h"

namespace lehr::state {

class WeightReader;

using TensorSpecs = std::unordered_map<std::string, TensorSpec>;

/// What a checkpoint's headers say of its tensors.
TensorSpecs specs_of(const WeightReader& reader);
/// Throws a usage error that starts with `subject` where a size cannot be counted.
int64_t num_bytes(const TensorSpec& spec, const std::string& subject);

/// A map, and shape and type of everything in it.
class BoundMap {
 public:
  /// Shapes follow from those of the inputs. Throws usage errors that name the tensors for an input that `inputs` lacks
  /// and for shapes or types that do not fit the operations.
  BoundMap(StateMap map, const TensorSpecs& inputs);

  const StateMap& map() const { return map_; }
  /// Of a value of the map's graph.
  const TensorSpec& spec(size_t value) const { return values_[value].spec; }
  /// The part of it that the map gives: all, unless the map is the inverse of one with slices.
  const Box& known(size_t value) const { return values_[value].known; }
  /// The name of the input that a value is, if it is one.
  const std::string* input_name(size_t value) const;
  /// The step that gives a value, and its place among the step's outputs; null for inputs.
  const MapStep* step_of(size_t value, size_t* output) const;

  /// All outputs, in the map's order.
  std::vector<TensorInfo> outputs() const;
  TensorSpecs output_specs() const;
  /// The value of the output of that name. Throws a usage error if there is none.
  size_t output_value(const std::string& name) const;

 private:
  struct Origin {
    size_t index = 0;   // of the map's inputs or steps
    size_t output = 0;  // of the step
    bool is_input = false;
  };
  std::string label(size_t value) const;

  StateMap map_;
  std::vector<TensorKnown> values_;
  std::vector<Origin> origins_;
  std::unordered_map<std::string, size_t> outputs_;
};

/// How much of a table to print.
struct MapTableOptions {
  size_t rows_per_group = SIZE_MAX;  ///< Of a group with more (an expert's worth, say) the first and the last.
};

/// The map as text, a block of rows a group: stored name, type and shape, operations, parameter name and shape.
std::string format_table(const BoundMap& map, const MapTableOptions& options = {});

}  // namespace lehr::state
