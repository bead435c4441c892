// Validation of a model with known losses.
#include "lehr/train/validate.h"

#include <gtest/gtest.h>

#include <vector>

#include "lehr/nn/head.h"

namespace lehr::train {
namespace {

/// Returns the losses in its batches, and records the mode of each forward.
class GivenLosses : public nn::Model {
 public:
  GivenLosses() {  // validation reads the device of a model's parameters
    declare_parameter("weight", weight_, {1}, nn::Init::zeros());
    nn::materialize(*this, at::kCPU, at::kDouble);
  }
  nn::ModelOutputs forward(const nn::ModelInputs& inputs) override {
    modes.push_back(is_training());
    nn::ModelOutputs outputs;
    outputs.logps = inputs.hidden_states;
    return outputs;
  }
  at::Tensor logits(const at::Tensor& hidden_states) override { return hidden_states; }
  at::ScalarType output_dtype() const override { return at::kDouble; }
  int64_t num_local_layers() const override { return 0; }

  std::vector<bool> modes;  ///< Whether the model was in training mode, per forward.

 private:
  at::Tensor weight_;
};

/// Batches have "losses" and "labels", (B, T) each. A token counts if its label is not -100.
class SumOfLosses : public TrainTask {
 public:
  nn::ModelInputs build_forward_inputs(const Batch& batch) const override {
    nn::ModelInputs inputs;
    inputs.hidden_states = batch.at("losses");
    return inputs;
  }
  int64_t count_valid(const Batch& batch) const override { return counted(batch).sum().item<int64_t>(); }
  at::Tensor compute_loss(const nn::ModelOutputs& outputs, const Batch& batch) const override {
    return (outputs.logps * counted(batch)).sum();
  }
  std::map<std::string, at::Tensor> compute_metrics(
      const nn::ModelOutputs& outputs, const Batch& batch) const override {
    return {{"above_two", outputs.logps.gt(2).logical_and(counted(batch)).sum()}};
  }

 private:
  static at::Tensor counted(const Batch& batch) { return batch.at("labels").ne(nn::kIgnoreIndex); }
};

/// A batch of a token with and a token without a label, and a batch of two tokens with labels.
class TwoBatches : public BatchStream {
 public:
  std::optional<Batch> next() override {
    ++step_;
    if (step_ == 1) {
      return batch({1, 9}, {0, nn::kIgnoreIndex});
    }
    return step_ == 2 ? std::optional(batch({2, 6}, {0, 0})) : std::nullopt;
  }

 private:
  static Batch batch(const std::vector<double>& losses, const std::vector<int64_t>& labels) {
    return {
        {"losses", at::tensor(losses, at::kDouble).unsqueeze(0)},
        {"labels", at::tensor(labels, at::kLong).unsqueeze(0)}};
  }
  int step_ = 0;
};

// The labelled losses are 1, 2 and 6. The mean of the batches' means would be 2.5, the mean over all tokens 2.25.
TEST(Validation, AveragesOverTheLabelledTokensOfAllBatches) {
  GivenLosses model;
  TwoBatches batches;
  const ValidationResult result = validate(model, SumOfLosses(), batches);
  EXPECT_TRUE(result.complete);
  EXPECT_EQ(result.valid, 3);
  EXPECT_DOUBLE_EQ(result.loss, 3);
  EXPECT_DOUBLE_EQ(result.metrics.at("above_two"), 1.0 / 3);
}

TEST(Validation, RunsInEvaluationModeAndRestoresTheMode) {
  for (const bool training : {true, false}) {
    GivenLosses model;
    model.train(training);
    TwoBatches batches;
    validate(model, SumOfLosses(), batches);
    EXPECT_EQ(model.modes, std::vector<bool>({false, false}));
    EXPECT_EQ(model.is_training(), training);
  }
}

}  // namespace
}  // namespace lehr::train
