// Quantized weights of published checkpoints, which are read as plain ones: MXFP4 as in gpt-oss, and float8 with one
// scale per block as in DeepSeek-V3. They are read only: nothing writes such files.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lehr/base/box.h"
#include "lehr/base/torch.h"
#include "lehr/state/safetensors.h"

namespace lehr::state {

/// The storage format of a quantized tensor.
enum class Quantization {
  /// NAME_blocks (E, out, in / 32, 16) U8 and NAME_scales (E, out, in / 32) U8 of the plain tensor NAME (E, in, out):
  /// element (e, 32 g + 2 b + h, o) is the low (h = 0) or high nibble of byte b of block (e, o, g), an e2m1 number,
  /// times 2^(scale - 127); NaN if the scale is 255 (OCP Microscaling Formats,
  /// https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf).
  mxfp4,
  /// NAME (R, C) F8_E4M3 and NAME_scale_inv (R / 128, C / 128, both rounded up) F32: element (r, c) is the stored one
  /// times scale (r / 128, c / 128), multiplied in float32.
  float8_blocks,
};

/// Returns "MXFP4", or "F8_E4M3 with scales of blocks".
const char* name_of(Quantization quantization);

/// A tensor that two stored ones define.
struct QuantizedTensor {
  Quantization quantization;
  TensorInfo info;     ///< The plain tensor, in bfloat16; it has no byte range in a file.
  std::string values;  ///< Names of the stored tensors.
  std::string scales;
};

/// Returns the file that has a tensor; null if there is no such tensor.
using FileOf = std::function<const SafetensorsFile*(const std::string& name)>;

/// Returns the quantized tensors among the stored ones. Throws a usage error that names file and tensor for shapes,
/// dtypes or names that do not fit.
std::vector<QuantizedTensor> find_quantized(const std::vector<std::string>& names, const FileOf& file_of);

/// Returns the region `box` of the plain tensor in `type`, rounded once from float32: MXFP4 is exact in bfloat16. Only
/// blocks that the region touches are read.
at::Tensor read_quantized(const QuantizedTensor& tensor, const Box& box, at::ScalarType type, const FileOf& file_of);

}  // namespace lehr::state
