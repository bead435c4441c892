// The header of a safetensors file: eight bytes with the length of the JSON that follows, and that JSON, which holds
// the dtype, shape and byte range of every tensor. https://github.com/huggingface/safetensors#format
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lehr/state/dtype.h"

namespace lehr::state {

/// The entry of a tensor in the header. `begin` and `end` are its byte range, counted from the end of the header.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  int64_t begin = 0;
  int64_t end = 0;

  int64_t num_bytes() const { return end - begin; }
};

/// Returns the number of elements. Throws a usage error that starts with `subject` for negative sizes, and if the
/// number does not fit 63 bits.
int64_t num_elements(const std::vector<int64_t>& shape, const std::string& subject);
/// Returns the bytes of a tensor of that dtype and shape. Throws like num_elements, and if they are not a whole number.
int64_t num_bytes(DType dtype, const std::vector<int64_t>& shape, const std::string& subject);

/// The content of a header.
struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;              ///< In file order.
  std::map<std::string, std::string> metadata;  ///< `__metadata__`: {"format": "pt"} in most files.
};

/// Size in bytes of the length in front of the JSON.
inline constexpr int64_t kHeaderLengthBytes = 8;
/// The format's limit on the JSON's size in bytes.
inline constexpr int64_t kMaxHeaderBytes = 100'000'000;

/// Parses the JSON of a header, with at most kMostJsonEntries tensors of 64 dimensions (state/strict_json.h). Memory is
/// allocated only for checked parts. The tensors must fill the `data_bytes` after the header without overlap or gap, as
/// the format requires. Throws usage errors that start with `file` and the tensor's name.
SafetensorsHeader parse_safetensors_header(std::string_view json, int64_t data_bytes, const std::string& file);

/// Returns the bytes of a header: length and JSON, padded with spaces so that the data begins at a multiple of eight
/// bytes.
std::string format_safetensors_header(const SafetensorsHeader& header);

}  // namespace lehr::state
