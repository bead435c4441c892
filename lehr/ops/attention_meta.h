// What ATen's flash attention keeps and allocates, without computing it.
#pragma once

#include <optional>

#include "lehr/base/torch.h"

namespace lehr::ops {

/// On meta, where at::scaled_dot_product_attention would hold all scores: q (B, T, Hq, D), k (B, S, Hkv, D), v
/// (B, S, Hkv, Dv) and `bias`, which broadcasts to (B, Hq, T, S), give (B, Hq, T, Dv). Keeps inputs, output and one
/// number a row.
at::Tensor flash_attention_on_meta(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& bias, bool causal);

}  // namespace lehr::ops
