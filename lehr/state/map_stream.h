// Application of state maps: tensors are streamed from a source to a sink, one output at a time, and only the needed
// regions of the source are read.
#pragma once

#include <functional>
#include <string>
#include <unordered_map>

#include "lehr/base/parallel_io.h"
#include "lehr/state/bound_map.h"
#include "lehr/state/safetensors_writer.h"

namespace lehr::state {

/// The source of a map's inputs.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  /// Returns a region of a tensor, on any device; a view if possible. The caller must not write to it.
  virtual at::Tensor read(const std::string& name, const Box& box) const = 0;
  /// Copies a region into `target`, which has its shape.
  virtual void copy(const std::string& name, const Box& box, const at::Tensor& target) const {
    target.copy_(read(name, box));
  }
  /// Returns the number of concurrent reads that is worth using.
  virtual int64_t concurrent_reads() const { return 1; }
};

/// A checkpoint's files, as views of mapped memory, so that only used bytes are read. `reader` must outlive it.
class WeightSource : public TensorSource {
 public:
  explicit WeightSource(const WeightReader& reader) : reader_(reader) {}
  at::Tensor read(const std::string& name, const Box& box) const override;
  void copy(const std::string& name, const Box& box, const at::Tensor& target) const override;
  int64_t concurrent_reads() const override { return kConcurrentReads; }

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

/// An output that is passed to a sink.
struct MappedTensor {
  const std::string& name;
  const TensorSpec& spec;  ///< Shape and dtype of the whole tensor.
  const Box& box;          ///< The region in `tensor`: all, unless the map produces only a part.
  at::Tensor tensor;
};
/// Receives the outputs of a map, one at a time.
using TensorSink = std::function<void(const MappedTensor&)>;

/// Passes every output to the sink, group by group. An output that is a single region of one input, possibly transposed
/// or reshaped, is a view of the source's tensor, without a copy; others are allocated and filled one input region at a
/// time. Nothing is held between two outputs, so no more memory is used than the inputs and outputs of one group take.
void stream(const BoundMap& map, const TensorSource& source, const TensorSink& sink);

/// Returns the region `box` of one output, as a view or newly allocated, as above. The region must be one that the map
/// produces.
at::Tensor read_output(const BoundMap& map, const TensorSource& source, const std::string& output, const Box& box);

/// Copies one whole output into `target`, converting dtype and device, without memory beyond the regions being read.
/// Throws a usage error if the shapes differ.
void read_into(const BoundMap& map, const TensorSource& source, const std::string& output, at::Tensor target);

/// Copies the region `box` of an output: no other element of any input is read.
void read_into(
    const BoundMap& map, const TensorSource& source, const std::string& output, const Box& box, at::Tensor target);

/// A region of a tensor that a rank holds.
struct HeldPart {
  Box box;
  at::Tensor tensor;  ///< Has the shape of the box.
};
/// The regions of a map's inputs that a rank holds, by name.
using HeldParts = std::unordered_map<std::string, HeldPart>;

/// Returns the regions of an output that a rank holds, given its regions of the inputs: views of its tensors, none of
/// them empty, without overlap. If the ranks together hold every element of the inputs once, they hold every element of
/// the output once.
std::vector<HeldPart> held_of_output(const BoundMap& map, const HeldParts& held, const std::string& output);

/// Returns a sink that writes to files planned for the map's outputs, with the dtypes of the plan. `writer` must
/// outlive it.
TensorSink file_sink(SafetensorsWriter& writer);

}  // namespace lehr::state
