// The header of a safetensors file: eight bytes with the length of the JSON that follows, and that JSON, which says the
// type, shape and place of every tensor. https://github.com/huggingface/safetensors#format
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lehr/state/dtype.h"

namespace lehr::state {

/// What a file says of a tensor. `begin` and `end` are the bytes it takes, counted from the end of the header.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  int64_t begin = 0;
  int64_t end = 0;

  int64_t num_bytes() const { return end - begin; }
};

/// Number of elements. Throws a usage error that starts with `subject` for negative sizes, and where the number would
/// not fit 63 bits.
int64_t num_elements(const std::vector<int64_t>& shape, const std::string& subject);
/// Bytes of a tensor of that type and shape; a usage error as above, and where they are not a whole number.
int64_t num_bytes(DType dtype, const std::vector<int64_t>& shape, const std::string& subject);

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;              ///< In the order of the file.
  std::map<std::string, std::string> metadata;  ///< `__metadata__`: {"format": "pt"} in most files.
};

/// Bytes of the length that stands before the JSON.
inline constexpr int64_t kHeaderLengthBytes = 8;
/// The format's limit for the JSON.
inline constexpr int64_t kMaxHeaderBytes = 100'000'000;

/// Reads the JSON of a header. The tensors must fill the `data_bytes` behind the header without overlap or gap, as the
/// format demands. Throws usage errors that start with `file` and the tensor's name.
SafetensorsHeader parse_safetensors_header(std::string_view json, int64_t data_bytes, const std::string& file);

/// The bytes of a header: length and JSON, filled up with blanks so that the data begins at a multiple of eight bytes.
std::string format_safetensors_header(const SafetensorsHeader& header);

}  // namespace lehr::state
