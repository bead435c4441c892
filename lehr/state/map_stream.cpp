#include "lehr/state/map_stream.h"

#include <fmt/ranges.h>

#include "lehr/base/error.h"
#include "lehr/state/weights.h"

namespace lehr::state {

namespace {
// Walks the graph from a value to the inputs it is made of.
class Evaluation {
 public:
  Evaluation(const BoundMap& map, const TensorSource& source) : map_(map), source_(source) {}

  // Writes a part of a value into `target`, which has the box's shape.
  void fill(size_t value, const Box& box, const at::Tensor& target) const {
    if (const std::string* name = map_.input_name(value)) {
      target.copy_(source_.read(*name, box));
      return;
    }
    size_t output = 0;
    const MapStep& step = *map_.step_of(value, &output);
    const int64_t rank = input_rank(step);
    for (const Demand& demand : pull_back(step.op, output, box, rank)) {
      fill(step.inputs[demand.input], demand.box, as_input(step.op, narrow_to(target, demand.place), rank));
    }
  }

  // A part of a value as a view of what the source reads; undefined if it is made of several.
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

std::vector<int64_t> sizes_of(const Box& box) {
  std::vector<int64_t> sizes;
  for (const Range& range : box) {
    sizes.push_back(range.size());
  }
  return sizes;
}

at::Tensor read_value(const BoundMap& map, const TensorSource& source, size_t value, const Box& box) {
  const at::NoGradGuard no_grad;
  const Evaluation evaluation(map, source);
  if (at::Tensor view = evaluation.view(value, box); view.defined()) {
    return view;
  }
  const DType dtype = map.spec(value).dtype;
  const auto type = scalar_type(dtype);
  require(type.has_value(), "state map: tensors of type {} cannot be joined", dtype_name(dtype));
  at::Tensor result = at::empty(sizes_of(box), at::TensorOptions().dtype(*type));
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

// Writes a part of a planned tensor: a range of bytes for each run of the file that the part covers.
void write_part(SafetensorsWriter& writer, const MappedTensor& part) {
  const PlannedTensor& planned = writer.plan().at(part.name);
  const auto type = scalar_type(planned.dtype);
  require(type.has_value(), "{}: tensors of type {} cannot be written", part.name, dtype_name(planned.dtype));
  const at::Tensor stored = part.tensor.to(at::TensorOptions().device(at::kCPU).dtype(*type)).contiguous();
  const auto element = static_cast<int64_t>(stored.element_size());
  // Dimensions from `inner` on are whole, so that a run is contiguous from the dimension before it.
  const auto rank = static_cast<int64_t>(part.box.size());
  int64_t inner = rank;
  int64_t run = 1;
  while (inner > 0 &&
         part.box[static_cast<size_t>(inner - 1)].size() == planned.shape[static_cast<size_t>(inner - 1)]) {
    --inner;
    run *= planned.shape[static_cast<size_t>(inner)];
  }
  if (inner > 0) {
    --inner;
    run *= part.box[static_cast<size_t>(inner)].size();
  }
  const int64_t runs = run == 0 ? 0 : stored.numel() / run;
  const auto* bytes = static_cast<const std::byte*>(stored.const_data_ptr());
  for (int64_t i = 0; i < runs; ++i) {
    int64_t offset = 0;  // of the run's first element in the whole tensor
    int64_t stride = 1;
    int64_t rest = i;
    for (int64_t dim = rank - 1; dim >= 0; --dim) {
      const Range& range = part.box[static_cast<size_t>(dim)];
      if (dim < inner) {
        offset += (range.begin + rest % range.size()) * stride;
        rest /= range.size();
      } else {
        offset += range.begin * stride;
      }
      stride *= planned.shape[static_cast<size_t>(dim)];
    }
    writer.write(part.name, offset * element, {bytes + i * run * element, static_cast<size_t>(run * element)});
  }
}
}  // namespace

at::Tensor WeightSource::read(const std::string& name, const Box& box) const {
  if (box.empty()) {
    return reader_.tensor(name);
  }
  Box rest = box;
  rest.front() = {0, box.front().size()};
  return narrow_to(reader_.rows(name, box.front().begin, box.front().end), rest);
}

ValueSource::ValueSource(const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    require(tensors_.emplace(name, tensor.detach()).second, "{}: there are two tensors of this name", name);
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
      "{}: {} was asked for, a state map gives {}",
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
      "{}: expected [{}], a state map gives {} of [{}]",
      output,
      fmt::join(target.sizes(), ", "),
      describe(map.known(value)),
      fmt::join(map.spec(value).shape, ", "));
  const at::NoGradGuard no_grad;
  Evaluation(map, source).fill(value, map.known(value), target);
}

TensorSink file_sink(SafetensorsWriter& writer) {
  return [&writer](const MappedTensor& part) {
    if (part.box == whole_box(part.spec.shape)) {
      writer.write(part.name, part.tensor);
    } else {
      write_part(writer, part);
    }
  };
}

}  // namespace lehr::state
