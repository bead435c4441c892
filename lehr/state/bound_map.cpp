#include "lehr/state/bound_map.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/config/suggest.h"
#include "lehr/state/weights.h"

namespace lehr::state {

TensorSpecs specs_of(const WeightReader& reader) {
  TensorSpecs specs;
  specs.reserve(reader.names().size());
  for (const std::string& name : reader.names()) {
    const TensorInfo& info = reader.info(name);
    specs.emplace(name, TensorSpec{.shape = info.shape, .dtype = info.dtype});
  }
  return specs;
}

int64_t num_bytes(const TensorSpec& spec, const std::string& subject) {
  return num_bytes(spec.dtype, spec.shape, subject);
}

BoundMap::BoundMap(StateMap map, const TensorSpecs& inputs)
    : map_(std::move(map)), values_(map_.num_values()), origins_(map_.num_values()) {
  for (size_t i = 0; i < map_.inputs().size(); ++i) {
    const MapPort& port = map_.inputs()[i];
    const auto found = inputs.find(port.name);
    require(found != inputs.end(), "{}: a state map reads it, but there is no such tensor", port.name);
    values_[port.value] = {found->second, whole_box(found->second.shape)};
    origins_[port.value] = {.index = i, .output = 0, .is_input = true};
  }
  for (size_t i = 0; i < map_.steps().size(); ++i) {
    const MapStep& step = map_.steps()[i];
    std::vector<const TensorKnown*> known;
    known.reserve(step.inputs.size());
    for (const size_t value : step.inputs) {
      known.push_back(&values_[value]);
    }
    std::vector<TensorKnown> results =
        infer(step.op, known, step.outputs.size(), [&](size_t input) { return label(step.inputs[input]); });
    for (size_t j = 0; j < step.outputs.size(); ++j) {
      values_[step.outputs[j]] = std::move(results[j]);
      origins_[step.outputs[j]] = {.index = i, .output = j, .is_input = false};
    }
  }
  outputs_.reserve(map_.outputs().size());
  for (const MapPort& port : map_.outputs()) {
    outputs_.emplace(port.name, port.value);
  }
}

const std::string* BoundMap::input_name(size_t value) const {
  const Origin& origin = origins_[value];
  return origin.is_input ? &map_.inputs()[origin.index].name : nullptr;
}

const MapStep* BoundMap::step_of(size_t value, size_t* output) const {
  const Origin& origin = origins_[value];
  *output = origin.output;
  return origin.is_input ? nullptr : &map_.steps()[origin.index];
}

// Returns the name of a value in errors: an input's own name, or "derived from" the first input that it is made of.
std::string BoundMap::label(size_t value) const {
  std::string text;
  while (!origins_[value].is_input) {
    text = "derived from ";
    value = map_.steps()[origins_[value].index].inputs.front();
  }
  return text + map_.inputs()[origins_[value].index].name;
}

std::vector<TensorInfo> BoundMap::outputs() const {
  std::vector<TensorInfo> infos;
  infos.reserve(map_.outputs().size());
  for (const MapPort& port : map_.outputs()) {
    infos.push_back({.name = port.name, .dtype = spec(port.value).dtype, .shape = spec(port.value).shape});
  }
  return infos;
}

TensorSpecs BoundMap::output_specs() const {
  TensorSpecs specs;
  specs.reserve(map_.outputs().size());
  for (const MapPort& port : map_.outputs()) {
    specs.emplace(port.name, spec(port.value));
  }
  return specs;
}

size_t BoundMap::output_value(const std::string& name) const {
  const auto found = outputs_.find(name);
  if (found == outputs_.end()) {
    const auto nearest = suggest(name, map_.output_names());
    fail(
        "{}: the state map produces no tensor of this name{}", name, nearest ? "; did you mean " + *nearest + "?" : "");
  }
  return found->second;
}

}  // namespace lehr::state
