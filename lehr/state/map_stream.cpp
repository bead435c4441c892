#include "lehr/state/map_stream.h"

#include <fmt/ranges.h>

#include "lehr/base/error.h"
#include "lehr/state/weights.h"

namespace lehr::state {

namespace {
// Walks the graph from a value back to the inputs that it is made of.
class Evaluation {
 public:
  Evaluation(const BoundMap& map, const TensorSource& source) : map_(map), source_(source) {}

  // Writes a region of a value into `target`, which has the box's shape.
  void fill(size_t value, const Box& box, const at::Tensor& target) const {
    if (const std::string* name = map_.input_name(value)) {
      source_.copy(*name, box, target);
      return;
    }
    size_t output = 0;
    const MapStep& step = *map_.step_of(value, &output);
    const int64_t rank = input_rank(step);
    for (const Demand& demand : pull_back(step.op, output, box, rank)) {
      fill(step.inputs[demand.input], demand.box, as_input(step.op, narrow_to(target, demand.place), rank));
    }
  }

  // Returns a region of a value as a view of the source's tensor; undefined if it is made of several tensors.
  at::Tensor view(size_t value, const Box& box) const {
    if (const std::string* name = map_.input_name(value)) {
      return source_.read(*name, box);
    }
    size_t output = 0;
    const MapStep& step = *map_.step_of(value, &output);
    const std::vector<Demand> demands = pull_back(step.op, output, box, input_rank(step));
    if (demands.size() != 1) {
      return {};
    }
    const at::Tensor input = view(step.inputs[demands[0].input], demands[0].box);
    return input.defined() ? as_result(step.op, input) : input;
  }

 private:
  int64_t input_rank(const MapStep& step) const {
    return static_cast<int64_t>(map_.spec(step.inputs.front()).shape.size());
  }

  const BoundMap& map_;
  const TensorSource& source_;
};

at::Tensor read_value(const BoundMap& map, const TensorSource& source, size_t value, const Box& box) {
  const at::NoGradGuard no_grad;
  const Evaluation evaluation(map, source);
  // Only values made of several regions need memory of their own.
  if (at::Tensor view = evaluation.view(value, box); view.defined()) {
    return view;
  }
  const DType dtype = map.spec(value).dtype;
  const auto type = scalar_type(dtype);
  if (!type) {
    fail("state map: tensors of type {} cannot be joined", dtype_name(dtype));
  }
  at::Tensor result = at::empty(shape_of(box), at::TensorOptions().dtype(*type));
  evaluation.fill(value, box, result);
  return result;
}

bool lies_in(const Box& box, const Box& known) {
  bool inside = box.size() == known.size();
  for (size_t dim = 0; inside && dim < box.size(); ++dim) {
    inside = box[dim].begin >= known[dim].begin && box[dim].end <= known[dim].end && box[dim].begin <= box[dim].end;
  }
  return inside;
}

}  // namespace

at::Tensor WeightSource::read(const std::string& name, const Box& box) const {
  return reader_.region(name, box);
}

void WeightSource::copy(const std::string& name, const Box& box, const at::Tensor& target) const {
  reader_.copy_region(name, box, target);
}

ValueSource::ValueSource(const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    require(tensors_.emplace(name, tensor.detach()).second, "{}: two tensors have this name", name);
  }
}

at::Tensor ValueSource::read(const std::string& name, const Box& box) const {
  const auto found = tensors_.find(name);
  require(found != tensors_.end(), "{}: no such tensor", name);
  return narrow_to(found->second, box);
}

TensorSpecs ValueSource::specs() const {
  TensorSpecs specs;
  for (const auto& [name, tensor] : tensors_) {
    specs.emplace(name, TensorSpec{.shape = tensor.sizes().vec(), .dtype = dtype_of(tensor.scalar_type())});
  }
  return specs;
}

void stream(const BoundMap& map, const TensorSource& source, const TensorSink& sink) {
  for (const StateGroup& group : map.map().groups()) {
    for (const std::string& name : group.outputs) {
      const size_t value = map.output_value(name);
      const Box& box = map.known(value);
      sink({.name = name, .spec = map.spec(value), .box = box, .tensor = read_value(map, source, value, box)});
    }
  }
}

at::Tensor read_output(const BoundMap& map, const TensorSource& source, const std::string& output, const Box& box) {
  const size_t value = map.output_value(output);
  require(
      lies_in(box, map.known(value)),
      "{}: {} was requested, but the state map produces {}",
      output,
      describe(box),
      describe(map.known(value)));
  return read_value(map, source, value, box);
}

void read_into(const BoundMap& map, const TensorSource& source, const std::string& output, at::Tensor target) {
  const size_t value = map.output_value(output);
  require(
      target.sizes() == at::IntArrayRef(map.spec(value).shape) &&
          lies_in(whole_box(target.sizes().vec()), map.known(value)),
      "{}: expected [{}], but the state map produces {} of [{}]",
      output,
      fmt::join(target.sizes(), ", "),
      describe(map.known(value)),
      fmt::join(map.spec(value).shape, ", "));
  read_into(map, source, output, map.known(value), std::move(target));
}

void read_into(
    const BoundMap& map, const TensorSource& source, const std::string& output, const Box& box, at::Tensor target) {
  const size_t value = map.output_value(output);
  require(
      lies_in(box, map.known(value)) && target.sizes() == at::IntArrayRef(shape_of(box)),
      "{}: {} was requested into [{}], but the state map produces {} of [{}]",
      output,
      describe(box),
      fmt::join(target.sizes(), ", "),
      describe(map.known(value)),
      fmt::join(map.spec(value).shape, ", "));
  if (target.numel() == 0) {
    return;
  }
  const at::NoGradGuard no_grad;
  Evaluation(map, source).fill(value, box, target);
}

namespace {
// Computes the regions of a value that a rank holds from the regions of the inputs that it holds.
class Holdings {
 public:
  Holdings(const BoundMap& map, const HeldParts& held) : map_(map), held_(held) {}

  // Returns the held regions within `box`, in coordinates of the whole value.
  std::vector<HeldPart> of(size_t value, const Box& box) const {
    if (const std::string* name = map_.input_name(value)) {
      return of_input(*name, box);
    }
    size_t output = 0;
    const MapStep& step = *map_.step_of(value, &output);
    const auto rank = static_cast<int64_t>(map_.spec(step.inputs.front()).shape.size());
    std::vector<HeldPart> parts;
    for (const Demand& demand : pull_back(step.op, output, box, rank)) {
      for (HeldPart& part : of(step.inputs[demand.input], demand.box)) {
        for (size_t dim = 0; dim < part.box.size(); ++dim) {  // input coordinates -> relative to the demand
          part.box[dim].begin -= demand.box[dim].begin;
          part.box[dim].end -= demand.box[dim].begin;
        }
        Box place = as_result(step.op, std::move(part.box), rank);
        for (size_t dim = 0; dim < place.size(); ++dim) {  // relative to the demand -> result coordinates
          const int64_t by = box[dim].begin + demand.place[dim].begin;
          place[dim].begin += by;
          place[dim].end += by;
        }
        parts.push_back({.box = std::move(place), .tensor = as_result(step.op, part.tensor)});
      }
    }
    return parts;
  }

 private:
  std::vector<HeldPart> of_input(const std::string& name, const Box& box) const {
    const auto found = held_.find(name);
    if (found == held_.end()) {
      return {};
    }
    const HeldPart& held = found->second;
    Box common;
    Box local;
    for (size_t dim = 0; dim < box.size(); ++dim) {
      const Range both{std::max(box[dim].begin, held.box[dim].begin), std::min(box[dim].end, held.box[dim].end)};
      if (both.size() <= 0) {
        return {};
      }
      common.push_back(both);
      local.push_back({both.begin - held.box[dim].begin, both.end - held.box[dim].begin});
    }
    return {{.box = std::move(common), .tensor = narrow_to(held.tensor, local)}};
  }

  const BoundMap& map_;
  const HeldParts& held_;
};
}  // namespace

std::vector<HeldPart> held_of_output(const BoundMap& map, const HeldParts& held, const std::string& output) {
  const at::NoGradGuard no_grad;
  const size_t value = map.output_value(output);
  return Holdings(map, held).of(value, map.known(value));
}

TensorSink file_sink(SafetensorsWriter& writer) {
  return [&writer](const MappedTensor& part) { writer.write(part.name, part.box, part.tensor); };
}

}  // namespace lehr::state
