// The element types that safetensors files name, and their counterparts in ATen.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lehr/base/torch.h"

namespace lehr::state {

/// Every type of the format (safetensors 0.8), in the format's order. Not all of them have a counterpart in ATen.
enum class DType {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3FNUZ,
  kF8E5M2FNUZ,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

/// The name that stands in files: "BF16".
std::string_view dtype_name(DType dtype);
/// The type of that name, if there is one.
std::optional<DType> dtype_from_name(std::string_view name);
/// Size of an element. Some types are smaller than a byte.
int64_t dtype_bits(DType dtype);

/// ATen's type of the same bits, if it has one.
std::optional<at::ScalarType> scalar_type(DType dtype);
/// The type under which ATen's is stored. Throws a usage error for those that the format lacks (quantized types, say).
DType dtype_of(at::ScalarType type);

/// The name that config.json has for a floating-point type: "bfloat16". Throws a usage error for other types.
std::string torch_name(at::ScalarType type);
/// The type of that name, if it is one of float16, bfloat16, float32, float64.
std::optional<at::ScalarType> type_from_torch_name(std::string_view name);

}  // namespace lehr::state
