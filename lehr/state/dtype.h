// Element types of safetensors files, and their counterparts in ATen.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lehr/base/torch.h"

namespace lehr::state {

/// All types of the format (safetensors 0.8), in the format's order. Not all have a counterpart in ATen.
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

/// Returns the name used in files: "BF16".
std::string_view dtype_name(DType dtype);
/// Returns the type of that name, if there is one.
std::optional<DType> dtype_from_name(std::string_view name);
/// Returns the bits per element. Some types are smaller than a byte.
int64_t dtype_bits(DType dtype);

/// Returns ATen's type of the same representation, if there is one.
std::optional<at::ScalarType> scalar_type(DType dtype);
/// Returns the stored type of an ATen type. Throws a usage error for types that the format lacks, such as quantized
/// ones.
DType dtype_of(at::ScalarType type);

/// Returns the name of a floating-point type in config.json: "bfloat16". Throws a usage error for other types.
std::string torch_name(at::ScalarType type);
/// Returns the type of that name, if it is one of float16, bfloat16, float32, float64.
std::optional<at::ScalarType> type_from_torch_name(std::string_view name);

}  // namespace lehr::state
