// LoRA adapters for linear layers and for grouped ones (the experts of an MoE layer).
#pragma once

#include <string>

#include "lehr/nn/dropout.h"
#include "lehr/nn/experts.h"
#include "lehr/nn/linear.h"
#include "lehr/nn/low_rank_adapter.h"
#include "lehr/peft/method.h"

namespace lehr::peft {

/// The name under which a linear layer registers its adapter: "....q_proj.lora.A".
inline constexpr const char* kAdapterName = "lora";

/// Common part of both adapters.
class LoraAdapter {
 public:
  /// Throws a usage error for a rank below 1, an alpha that is not positive, or a dropout outside [0, 1).
  explicit LoraAdapter(const Lora& settings);
  virtual ~LoraAdapter() = default;

  const Lora& settings() const { return settings_; }

  /// The update that merging adds to the weight, in its shape: scaling * B A, in at least float32.
  at::Tensor delta_weight() const;

  at::Tensor A;  // (r, in); grouped: (groups, r, in)
  at::Tensor B;  // (out, r); grouped: (groups, out, r)

 protected:
  Lora settings_;
};

/// scaling * B A dropout(x). A is initialized like torch.nn.Linear (uniform within 1 / sqrt(in)), B with zeros, so that
/// the initial output is that of the base model.
class LoraLinear : public nn::LinearAdapter, public nn::LowRankAdapter, public LoraAdapter, public nn::DropoutModule {
 public:
  /// `name` is the linear layer's full name, which selects the dropout masks. Throws the errors of LoraAdapter.
  LoraLinear(std::string name, int64_t in_features, int64_t out_features, const Lora& settings);

  /// Maps (..., in_features) to (..., out_features). With dropout in training mode, throws a usage error unless the
  /// input is (B, T, in_features), because masks depend on the sequence and the token. Where A or B are sharded by
  /// tensor parallelism, input or output are shards too; with a shard of A, ranks sum the outputs.
  at::Tensor forward(const at::Tensor& input) override;

  const nn::ParameterPtr& input_matrix() const override { return own_parameter("A"); }
  const nn::ParameterPtr& output_matrix() const override { return own_parameter("B"); }
  void set_sequence_chunks(std::vector<int64_t> chunks) override { sequence_chunks_ = std::move(chunks); }
  void set_sequence_part(int64_t part, int64_t parts) override;

  void set_dropout_stream(uint64_t seed, uint64_t step, int64_t first_row) override;

 private:
  at::Tensor drop(const at::Tensor& input) const;
  std::vector<int64_t> chunks_of_part() const;

  std::string name_;
  uint64_t dropout_seed_ = 0;
  uint64_t dropout_step_ = 0;
  int64_t dropout_first_row_ = 0;
  std::vector<int64_t> sequence_chunks_{0};
  int64_t sequence_part_ = 0, sequence_parts_ = 1;
};

/// The same for every group of a GroupedLinear.
class LoraGroupedLinear : public nn::GroupedLinearAdapter, public LoraAdapter {
 public:
  /// Also throws a usage error for dropout: inputs are sorted by expert without their token's index, so masks would
  /// depend on the micro-batch size. `name` is used in that message.
  LoraGroupedLinear(
      const std::string& name, int64_t num_groups, int64_t in_features, int64_t out_features, const Lora& settings);

  at::Tensor forward(const at::Tensor& rows, const at::Tensor& ends, int64_t first) override;
};

}  // namespace lehr::peft
