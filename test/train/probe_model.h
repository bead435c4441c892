// The smallest models that a TrainStep accepts, with gradients that are known by hand, for tests of its own work.
#pragma once

#include <string>
#include <vector>

#include "lehr/nn/head.h"
#include "lehr/nn/model.h"
#include "lehr/optim/optimizer.h"
#include "lehr/train/task.h"

namespace lehr::train::testing {

/// A weight (H), and its scalar product with each token.
class ScalarProductImpl : public nn::Module {
 public:
  explicit ScalarProductImpl(int64_t size) { declare_parameter("weight", weight, {size}, nn::Init::zeros()); }
  at::Tensor forward(const at::Tensor& tokens) { return (tokens * weight).sum(-1); }  // (B, T, H) to (B, T)

  at::Tensor weight;
};
LEHR_MODULE(ScalarProduct);

/// The loss of a token is its scalar product with the weight, so that its gradient is the token itself.
class LinearLossModel : public nn::Model {
 public:
  explicit LinearLossModel(int64_t size) : product(register_module("product", ScalarProduct(size))) {}
  nn::ModelOutputs forward(const nn::ModelInputs& inputs) override {
    nn::ModelOutputs outputs;
    outputs.logps = product(inputs.hidden_states.to(product->weight.scalar_type()));
    return outputs;
  }
  at::Tensor logits(const at::Tensor& hidden_states) override { return hidden_states; }
  at::ScalarType output_dtype() const override { return product->weight.scalar_type(); }
  int64_t num_local_layers() const override { return 1; }
  /// Copies these numbers, or this rank's shard of them, to the weight.
  void set_weight(const at::Tensor& whole) {
    const at::NoGradGuard no_grad;
    const auto& parameter = product->own_parameter("weight");
    at::Tensor value = parameter->value();
    value.copy_(narrow_to(whole, parameter->box()));
  }
  const nn::ParameterPtr& weight() const { return product->own_parameter("weight"); }

  ScalarProduct product{nullptr};
};

/// A classification head with dropout, on hidden states that are all ones: scores differ only by their masks.
class DropoutModel : public nn::Model {
 public:
  explicit DropoutModel(int64_t width)
      : head(register_module("head", nn::ClassificationHead(width, /*num_labels=*/1, /*dropout=*/0.5))) {}
  nn::ModelOutputs forward(const nn::ModelInputs& inputs) override {
    nn::ModelOutputs outputs;
    outputs.scores = head(inputs.hidden_states);  // (B, T, 1)
    return outputs;
  }
  at::Tensor logits(const at::Tensor& hidden_states) override { return hidden_states; }
  at::ScalarType output_dtype() const override { return head->score->weight.scalar_type(); }
  int64_t num_local_layers() const override { return 1; }

  nn::ClassificationHead head{nullptr};
};

/// Batches have "tokens" (B, T, H) and "labels" (B, T). A label of -100 means that the token does not count; other
/// labels have no meaning.
class ProbeTask : public TrainTask {
 public:
  nn::ModelInputs build_forward_inputs(const Batch& batch) const override {
    nn::ModelInputs inputs;
    inputs.hidden_states = batch.at("tokens");
    return inputs;
  }
  int64_t count_valid(const Batch& batch) const override { return counted(batch).sum().item<int64_t>(); }
  at::Tensor compute_loss(const nn::ModelOutputs& outputs, const Batch& batch) const override {
    if (outputs.logps.defined()) {
      return (outputs.logps * counted(batch)).sum();
    }
    for (const at::Tensor& of_sequence : outputs.scores.unbind()) {
      scores.push_back(of_sequence.sum().item<double>());
    }
    return outputs.scores.sum();
  }

  mutable std::vector<double> scores;  ///< The score of each sequence of each forward so far, in order.

 private:
  static at::Tensor counted(const Batch& batch) { return batch.at("labels").ne(nn::kIgnoreIndex); }
};

}  // namespace lehr::train::testing
