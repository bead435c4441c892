// Costs of ATen's operators, derived from names and inputs in the start callback of a recorded operator. Used by
// operation_meter.h and operator_profile.h.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string_view>

#include "lehr/base/torch.h"

namespace lehr {

/// The inputs of a recorded operator, as its start callback gets them.
using OperatorInputs = c10::ArrayRef<const c10::IValue>;

/// The size of `batch` matmuls of an (m, k) and a (k, n) matrix.
struct ProductSize {
  int64_t batch = 1;
  int64_t m = 0;
  int64_t k = 0;
  int64_t n = 0;

  /// Two per multiply-add.
  double flops() const;
  auto operator<=>(const ProductSize&) const = default;
};

/// Returns the size of a matmul; nullopt for other operators, and for one that calls other matmul operators.
std::optional<ProductSize> product_size(std::string_view name, const OperatorInputs& inputs);

/// Returns the FLOPs of scores and weighted values; backward counts twice the forward. nullopt if the operator is not
/// ATen's attention.
std::optional<double> attention_flops(std::string_view name, const OperatorInputs& inputs);

/// True if an operator moves no elements: views and allocations.
bool moves_nothing(std::string_view name);
/// True if an operator only allocates; an operator that calls only such operators counts as a leaf.
bool makes_room(std::string_view name);
/// True if an operator writes its first input without reading it.
bool only_writes_first(std::string_view name);

/// Bytes of a tensor or of a list of tensors; 0 for anything else.
int64_t bytes_of(const c10::IValue& value);

}  // namespace lehr
