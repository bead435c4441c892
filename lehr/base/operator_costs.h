// What ATen's operators cost, told by their names and inputs: for meters and profiles (operation_meter.h,
// operator_profile.h), in the start callback of a recorded operator.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string_view>

#include "lehr/base/torch.h"

namespace lehr {

using OperatorInputs = c10::ArrayRef<const c10::IValue>;

/// `batch` products of m x k and k x n matrices.
struct ProductSize {
  int64_t batch = 1;
  int64_t m = 0;
  int64_t k = 0;
  int64_t n = 0;

  /// Two for each multiplication and addition.
  double flops() const;
  auto operator<=>(const ProductSize&) const = default;
};

/// Nothing if the operator is no matrix product, or one made of others.
std::optional<ProductSize> product_size(std::string_view name, const OperatorInputs& inputs);

/// Of scores and weighted values; backward counts twice the forward. Nothing if it is not ATen's attention.
std::optional<double> attention_flops(std::string_view name, const OperatorInputs& inputs);

/// Whether an operator moves no elements: views, and room for others.
bool moves_nothing(std::string_view name);
/// Whether it only makes room, so that an operator that calls it is not made of others.
bool makes_room(std::string_view name);
/// Whether it writes its first input without reading it.
bool only_writes_first(std::string_view name);

/// Of a tensor, or a list of them; 0 for anything else.
int64_t bytes_of(const c10::IValue& value);

}  // namespace lehr
