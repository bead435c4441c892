// The adapters that LoRA puts on linear layers, alone and in groups (the experts of a mixture).
#pragma once

#include <string>

#include "lehr/nn/dropout.h"
#include "lehr/nn/experts.h"
#include "lehr/nn/linear.h"
#include "lehr/peft/method.h"

namespace lehr::peft {

/// The child under which a linear layer holds its adapter: "....q_proj.lora.A".
inline constexpr const char* kAdapterName = "lora";

/// What both have in common.
class LoraAdapter {
 public:
  /// Throws a usage error for a rank below 1, an alpha that is not positive, or a dropout outside [0, 1).
  explicit LoraAdapter(const Lora& settings);
  virtual ~LoraAdapter() = default;

  const Lora& settings() const { return settings_; }

  /// What merging adds to the weight, in its shape: scaling * B A, in float32 at least.
  at::Tensor delta_weight() const;

  at::Tensor A;  // (r, in); (groups, r, in)
  at::Tensor B;  // (out, r); (groups, out, r)

 protected:
  Lora settings_;
};

/// scaling * B A dropout(x). A starts as torch.nn.Linear does (uniform within 1 / sqrt(in)), B with zeros, so that the
/// model computes at first what it computed without.
class LoraLinear : public nn::LinearAdapter, public LoraAdapter, public nn::DropoutModule {
 public:
  /// `name` is the linear layer's full name: it names the dropout masks. Errors as LoraAdapter's.
  LoraLinear(std::string name, int64_t in_features, int64_t out_features, const Lora& settings);

  /// Maps (..., in_features) to (..., out_features). With dropout, while training, the input must be (B, T,
  /// in_features): masks are drawn by row and token. A usage error otherwise.
  at::Tensor forward(const at::Tensor& input) override;

  void set_dropout_stream(uint64_t seed, uint64_t step, int64_t first_row) override;

 private:
  at::Tensor drop(const at::Tensor& input) const;

  std::string name_;
  uint64_t dropout_seed_ = 0;
  uint64_t dropout_step_ = 0;
  int64_t dropout_first_row_ = 0;
};

/// The same for every group of a GroupedLinear.
class LoraGroupedLinear : public nn::GroupedLinearAdapter, public LoraAdapter {
 public:
  /// Throws a usage error for dropout too: rows come sorted by expert, and which token a row is cannot be told, so that
  /// masks would depend on how a step is cut into batches. `name` is for that message.
  LoraGroupedLinear(
      const std::string& name, int64_t num_groups, int64_t in_features, int64_t out_features, const Lora& settings);

  /// Rows sorted by group, (N, in_features) to (N, out_features).
  at::Tensor forward(const at::Tensor& rows, const at::Tensor& ends) override;
};

}  // namespace lehr::peft
