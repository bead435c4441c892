// Built with NDEBUG, as LibTorch is: without it, the header lays out at::RecordFunction differently.
#include "lehr/train/attention_path.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/record_function.h>

#include <memory>
#include <string_view>

#include "lehr/base/call_context.h"
#include "lehr/ops/attention/attention.h"
#include "lehr/ops/attention/attention_sequences.h"

namespace lehr::train {

namespace {
const ContextSlot<std::string*> kFound("attention path");  // the kernel that the innermost watched call ran

// Returns the kernel by a part of its operator's name: either of the operator that scaled_dot_product_attention calls,
// or of the one below it that a caller may use directly.
const char* kernel_of(std::string_view name) {
  if (!name.starts_with("aten::") || name.find("attention") == std::string_view::npos) {
    return nullptr;
  }
  const auto holds = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  return holds("flash")       ? "flash attention"
         : holds("efficient") ? "memory-efficient attention"
         : holds("cudnn")     ? "cuDNN's attention"
         : holds("math")      ? "plain matmuls, which hold all scores"
                              : nullptr;
}

std::unique_ptr<at::ObserverContext> see(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  std::string* const found = kFound.get();
  if (found != nullptr && found->empty()) {
    if (const char* const kernel = kernel_of(name)) {
      *found = kernel;
    }
  }
  return nullptr;
}

// Records the first attention kernel that this thread calls while it exists.
class Watch {
 public:
  Watch() : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(&see).scopes({at::RecordScope::FUNCTION}))) {
    kFound.set(&found);
  }
  ~Watch() {
    at::removeCallback(handle_);
    kFound.set(nullptr);
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  std::string found;

 private:
  at::CallbackHandle handle_;
};

std::string kernel_for(
    const AttentionShape& shape,
    at::Device device,
    at::ScalarType dtype,
    const ops::AttentionMask& mask,
    int64_t rows) {
  const auto options = at::TensorOptions(dtype).device(device);
  const auto filled = [&](int64_t heads) {
    return at::ones({1, rows, heads, shape.head_size}, options).requires_grad_();
  };
  const at::Tensor q = filled(shape.heads), k = filled(shape.key_heads), v = filled(shape.key_heads);
  const Watch watch;
  ops::attention(q, k, v, mask);
  return watch.found.empty() ? "Lehr's kernel" : watch.found;
}
}  // namespace

std::string describe_attention(const AttentionShape& shape, at::Device device, at::ScalarType dtype) {
  constexpr int64_t kTokens = 128;
  const std::string whole = kernel_for(shape, device, dtype, {}, kTokens);
  const at::Tensor documents = at::arange(kTokens, at::kLong).floor_divide(kTokens / 2).unsqueeze(0);
  const std::string packed = kernel_for(shape, device, dtype, ops::row_mask(documents, {}, device), kTokens);
  return whole == packed ? whole : whole + "; packed documents: " + packed;
}

}  // namespace lehr::train
