#include "lehr/state/dtype.h"

#include <array>

#include "lehr/base/error.h"

namespace lehr::state {

namespace {
struct Row {
  std::string_view name;
  int64_t bits;
  std::optional<at::ScalarType> scalar_type;
};

// In the order of DType.
constexpr std::array kRows = {
    Row{"BOOL", 8, at::kBool},
    Row{"F4", 4, std::nullopt},
    Row{"F6_E2M3", 6, std::nullopt},
    Row{"F6_E3M2", 6, std::nullopt},
    Row{"U8", 8, at::kByte},
    Row{"I8", 8, at::kChar},
    Row{"F8_E5M2", 8, at::kFloat8_e5m2},
    Row{"F8_E4M3", 8, at::kFloat8_e4m3fn},
    Row{"F8_E8M0", 8, at::kFloat8_e8m0fnu},
    Row{"F8_E4M3FNUZ", 8, at::kFloat8_e4m3fnuz},
    Row{"F8_E5M2FNUZ", 8, at::kFloat8_e5m2fnuz},
    Row{"I16", 16, at::kShort},
    Row{"U16", 16, at::kUInt16},
    Row{"F16", 16, at::kHalf},
    Row{"BF16", 16, at::kBFloat16},
    Row{"I32", 32, at::kInt},
    Row{"U32", 32, at::kUInt32},
    Row{"F32", 32, at::kFloat},
    Row{"C64", 64, at::kComplexFloat},
    Row{"F64", 64, at::kDouble},
    Row{"I64", 64, at::kLong},
    Row{"U64", 64, at::kUInt64},
};
static_assert(kRows.size() == static_cast<size_t>(DType::kU64) + 1);

const Row& row(DType dtype) {
  return kRows[static_cast<size_t>(dtype)];
}
}  // namespace

std::string_view dtype_name(DType dtype) {
  return row(dtype).name;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].name == name) {
      return static_cast<DType>(i);
    }
  }
  return std::nullopt;
}

int64_t dtype_bits(DType dtype) {
  return row(dtype).bits;
}

std::optional<at::ScalarType> scalar_type(DType dtype) {
  return row(dtype).scalar_type;
}

DType dtype_of(at::ScalarType type) {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].scalar_type == type) {
      return static_cast<DType>(i);
    }
  }
  fail("safetensors: tensors of type {} cannot be stored; convert them to another type first", c10::toString(type));
}

namespace {
constexpr std::array<std::pair<std::string_view, at::ScalarType>, 4> kTorchNames = {
    {{"float16", at::kHalf}, {"bfloat16", at::kBFloat16}, {"float32", at::kFloat}, {"float64", at::kDouble}}};
}  // namespace

std::string torch_name(at::ScalarType type) {
  for (const auto& [name, known] : kTorchNames) {
    if (known == type) {
      return std::string(name);
    }
  }
  fail("config.json: dtype {} has no name there", c10::toString(type));
}

std::optional<at::ScalarType> type_from_torch_name(std::string_view name) {
  for (const auto& [known, type] : kTorchNames) {
    if (known == name) {
      return type;
    }
  }
  return std::nullopt;
}

}  // namespace lehr::state
