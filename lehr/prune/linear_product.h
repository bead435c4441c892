// One linear layer made of the weights of a sub-block, without training (Puzzle, https://arxiv.org/abs/2411.19146).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lehr/base/box.h"
#include "lehr/state/bound_map.h"

namespace lehr::prune {

/// The weight (hidden_size, hidden_size) of a linear layer in place of a sub-block: the product of the sub-block's last
/// matrix and one of its first. Biases have no part in it.
class LinearProduct {
 public:
  /// o_proj v_proj, as if each token attended only to itself; a query head has the values of its KV head. `layer` is
  /// the layer's prefix ("model.layers.3."), `specs` those of all parameters. Throws a usage error if one is missing.
  static LinearProduct of_attention(
      const std::string& layer, int64_t num_key_value_heads, const state::TensorSpecs& specs);
  /// down_proj up_proj, as if the gate were 1. Of an MoE layer the mean over the experts, and the shared expert's.
  static LinearProduct of_ffn(const std::string& layer, const state::TensorSpecs& specs);

  /// Name of the parameter, such as "model.layers.3.self_attn.linear_attn.weight".
  const std::string& name() const { return name_; }
  /// Its spec, with the dtype of the last matrix.
  const state::TensorSpec& spec() const { return spec_; }
  /// Whether a parameter belongs to the sub-block that is replaced.
  bool replaces(const std::string& parameter) const { return parameter.starts_with(subblock_); }

  /// Returns a region of the weight in dtype `type`. `read_parent` reads regions of other parameters. Sums are in
  /// float64.
  at::Tensor read(
      const Box& box,
      at::ScalarType type,
      const std::function<at::Tensor(const std::string& name, const Box& box)>& read_parent) const;

 private:
  // The product last · first, or for tensors of experts the mean of theirs.
  struct Factors {
    std::string last, first;
    std::vector<int64_t> last_shape, first_shape;
    int64_t heads = 1;        // `first` has a block of rows per KV head, `last` several blocks of columns
    bool alternates = false;  // every second row of `first` is one of up_proj; the others are gate_proj's
  };

  LinearProduct(std::string subblock, const char* module) : subblock_(std::move(subblock)) {
    name_ = subblock_ + module + ".weight";
  }
  void add(const std::string& last, const std::string& first, const state::TensorSpecs& specs, int64_t heads = 1);

  std::string subblock_, name_;
  state::TensorSpec spec_;
  std::vector<Factors> terms_;
};

}  // namespace lehr::prune
