// The adapter that LoRA puts on a linear layer.
#pragma once

#include <string>

#include "lehr/nn/dropout.h"
#include "lehr/nn/linear.h"
#include "lehr/peft/method.h"

namespace lehr::peft {

/// The child under which a linear layer holds its adapter: "....q_proj.lora.A".
inline constexpr const char* kAdapterName = "lora";

/// scaling * B A dropout(x). A starts as torch.nn.Linear does (uniform within 1 / sqrt(in)), B with zeros, so that the
/// model computes at first what it computed without.
class LoraLinear : public nn::LinearAdapter, public nn::DropoutModule {
 public:
  /// `name` is the linear layer's full name: it names the dropout masks. Throws a usage error for a rank below 1, an
  /// alpha that is not positive, or a dropout outside [0, 1).
  LoraLinear(std::string name, int64_t in_features, int64_t out_features, const Lora& settings);

  /// Maps (..., in_features) to (..., out_features). With dropout, while training, the input must be (B, T,
  /// in_features): masks are drawn by row and token. A usage error otherwise.
  at::Tensor forward(const at::Tensor& input) override;

  /// What merging adds to the weight: scaling * B A, (out, in), in float32 at least.
  at::Tensor delta_weight() const;

  void set_dropout_stream(uint64_t seed, uint64_t step, int64_t first_row) override;

  const Lora& settings() const { return settings_; }

  at::Tensor A;  // (r, in)
  at::Tensor B;  // (out, r)

 private:
  at::Tensor drop(const at::Tensor& input) const;

  std::string name_;
  Lora settings_;
  uint64_t dropout_seed_ = 0;
  uint64_t dropout_step_ = 0;
  int64_t dropout_first_row_ = 0;
};

}  // namespace lehr::peft
