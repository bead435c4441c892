#include "lehr/ops/attention/attention_padding.h"

#include <ATen/ops/constant_pad_nd.h>

namespace lehr::ops {

namespace {
constexpr int64_t kStep = 8;
}  // namespace

int64_t padded_size(int64_t size) {
  return (size + kStep - 1) / kStep * kStep;
}

at::Tensor padded_heads(const at::Tensor& x, int64_t size) {
  if (x.size(2) < size) {
    return at::constant_pad_nd(x, {0, size - x.size(2)});  // zeros do not change scores, and are cut off the outputs
  }
  const bool aligned = x.stride(2) == 1 && x.stride(1) % kStep == 0 && x.stride(0) % kStep == 0 &&
                       reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % 16 == 0;
  return aligned ? x : x.clone(at::MemoryFormat::Contiguous);
}

at::Tensor cut_heads(const at::Tensor& x, int64_t size) {
  return x.narrow(2, 0, size).contiguous();
}

}  // namespace lehr::ops
