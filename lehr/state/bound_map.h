// A state map bound to the shapes of its tensors: validated, measurable and printable before any value is read.
#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "lehr/state/safetensors_header.h"
#include "lehr/state/state_map.h"

namespace lehr::state {

class WeightReader;

/// Shapes and dtypes by tensor name.
using TensorSpecs = std::unordered_map<std::string, TensorSpec>;

/// Returns the shapes and dtypes of a checkpoint's tensors, from its headers.
TensorSpecs specs_of(const WeightReader& reader);
/// Returns the bytes of a tensor. Throws a usage error that starts with `subject` if the size overflows.
int64_t num_bytes(const TensorSpec& spec, const std::string& subject);

/// A map with the shape and dtype of every value of its graph.
class BoundMap {
 public:
  /// Infers shapes from those of the inputs. Throws usage errors that name the tensors: for an input that `inputs`
  /// lacks, and for shapes or dtypes that do not fit an operation.
  BoundMap(StateMap map, const TensorSpecs& inputs);

  const StateMap& map() const { return map_; }
  /// Returns the shape and dtype of a value of the map's graph.
  const TensorSpec& spec(size_t value) const { return values_[value].spec; }
  /// Returns the region of the value that the map produces: all of it, unless the map is the inverse of one with
  /// slices.
  const Box& known(size_t value) const { return values_[value].known; }
  /// Returns the name of the input that a value is; null if the value is not an input.
  const std::string* input_name(size_t value) const;
  /// Returns the step that produces a value, and its index among the step's outputs; null for inputs.
  const MapStep* step_of(size_t value, size_t* output) const;

  /// Returns all outputs, in the map's order.
  std::vector<TensorInfo> outputs() const;
  TensorSpecs output_specs() const;
  /// Returns the value of the output of that name. Throws a usage error if there is none.
  size_t output_value(const std::string& name) const;

 private:
  struct Origin {
    size_t index = 0;   // in the map's inputs or steps
    size_t output = 0;  // index among the step's outputs
    bool is_input = false;
  };
  std::string label(size_t value) const;

  StateMap map_;
  std::vector<TensorKnown> values_;
  std::vector<Origin> origins_;
  std::unordered_map<std::string, size_t> outputs_;
};

/// Options of format_table.
struct MapTableOptions {
  size_t rows_per_group = SIZE_MAX;  ///< Print only the first and last rows of larger groups (such as stacked experts).
};

/// Formats the map as text, one block of rows per group: stored name, dtype and shape, operations, parameter name and
/// shape.
std::string format_table(const BoundMap& map, const MapTableOptions& options = {});

}  // namespace lehr::state
