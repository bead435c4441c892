// Applies state maps: tensors flow from a source to a sink one output at a time, and of the source only those boxes are
// read that an output is made of.
#pragma once

#include <functional>
#include <string>
#include <unordered_map>

#include "lehr/base/at_once.h"
#include "lehr/state/bound_map.h"
#include "lehr/state/safetensors_writer.h"

namespace lehr::state {

/// Where the inputs of a map come from.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  /// That part of a tensor, on any device; a view where there is one. It is not written to.
  virtual at::Tensor read(const std::string& name, const Box& box) const = 0;
  /// Copies that part into `target`, which has its shape.
  virtual void copy(const std::string& name, const Box& box, const at::Tensor& target) const {
    target.copy_(read(name, box));
  }
  /// How many threads may read at once, and gain by it.
  virtual int64_t reads_at_once() const { return 1; }
};

/// A checkpoint's files: views of mapped memory, so that only what is used is read. `reader` must outlive it.
class WeightSource : public TensorSource {
 public:
  explicit WeightSource(const WeightReader& reader) : reader_(reader) {}
  at::Tensor read(const std::string& name, const Box& box) const override;
  void copy(const std::string& name, const Box& box, const at::Tensor& target) const override;
  int64_t reads_at_once() const override { return kReadsAtOnce; }

 private:
  const WeightReader& reader_;
};

/// Tensors in memory.
class ValueSource : public TensorSource {
 public:
  explicit ValueSource(const NamedTensors& tensors);
  at::Tensor read(const std::string& name, const Box& box) const override;
  TensorSpecs specs() const;

 private:
  std::unordered_map<std::string, at::Tensor> tensors_;
};

/// An output on its way to a sink.
struct MappedTensor {
  const std::string& name;
  const TensorSpec& spec;  ///< Of the whole tensor.
  const Box& box;          ///< The part that `tensor` is: all, unless the map leaves the rest to others.
  at::Tensor tensor;
};
using TensorSink = std::function<void(const MappedTensor&)>;

/// Gives every output to the sink, group by group. An output that is one box of one input, turned at most, is a view of
/// what the source read, without a copy; others are made in new memory, one input's box at a time. Nothing is held
/// between two outputs, so no more memory is used than the inputs and outputs of one group take.
void stream(const BoundMap& map, const TensorSource& source, const TensorSink& sink);

/// The part `box` of one output. A view or new memory, as above. The box must lie in the part that the map gives.
at::Tensor read_output(const BoundMap& map, const TensorSource& source, const std::string& output, const Box& box);

/// Copies one whole output into `target`, converting type and device, without memory of its own beyond the boxes that
/// are read. Throws a usage error if the shapes differ.
void read_into(const BoundMap& map, const TensorSource& source, const std::string& output, at::Tensor target);

/// As above, for the part `box` of an output: no other element of any input is read.
void read_into(
    const BoundMap& map, const TensorSource& source, const std::string& output, const Box& box, at::Tensor target);

/// A part of a tensor that somebody has.
struct HeldPart {
  Box box;
  at::Tensor tensor;  ///< Of the box's shape.
};
/// What a rank has of the inputs of a map, by name.
using HeldParts = std::unordered_map<std::string, HeldPart>;

/// What a rank that has these parts of the inputs has of an output: views of its tensors, none of them empty, that do
/// not overlap. If ranks have every element of the inputs once, they have every element of the output once.
std::vector<HeldPart> held_of_output(const BoundMap& map, const HeldParts& held, const std::string& output);

/// The sink that writes to files planned for the map's outputs; their types are the plan's. `writer` must outlive it.
TensorSink file_sink(SafetensorsWriter& writer);

}  // namespace lehr::state
