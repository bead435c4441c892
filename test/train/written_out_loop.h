// A training loop in plain ATen and autograd, for comparison with the trainer.
//
// Only the forward pass up to the logits is the library's. Micro-batches, the loss and its mean, router losses, the
// gradient norm, clipping, the learning-rate schedule, AdamW and the routers' bias are written out, in float64.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lehr/nn/model.h"
#include "lehr/nn/router.h"
#include "lehr/train/task.h"

namespace lehr::train::written_out {

inline constexpr int64_t kSteps = 6;
inline constexpr int64_t kBatchSize = 4;
inline constexpr int64_t kMicrobatchSize = 2;
inline constexpr int64_t kTokens = 12;
inline constexpr int64_t kExperts = 4;
inline constexpr int64_t kTopK = 2;

inline constexpr double kLearningRate = 0.02;
inline constexpr double kBeta1 = 0.8;
inline constexpr double kBeta2 = 0.9;
inline constexpr double kEps = 1e-3;  // so large that the size of gradients, and thus clipping, has an effect
inline constexpr double kWeightDecay = 0.2;
inline constexpr double kMaxNorm = 0.05;
inline constexpr double kAuxLoss = 0.3;
inline constexpr double kZLoss = 0.2;
inline constexpr double kBiasRate = 0.01;

// Two steps of linear warm-up, then linear decay to a tenth. The decay covers the 4 steps after warm-up and would reach
// its end one step after the run; the third step is still at 1.
inline constexpr double kFactors[kSteps] = {0.5, 1, 1, 1 - 0.9 * 1 / 4, 1 - 0.9 * 2 / 4, 1 - 0.9 * 3 / 4};

/// The metrics of a run, and its final weights.
struct Outcome {
  std::map<std::string, std::vector<double>> logged;
  std::map<std::string, at::Tensor> weights;
};

inline std::map<std::string, at::Tensor> copies_of(const nn::Model& model) {
  std::map<std::string, at::Tensor> copies;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    copies[name] = parameter->value().detach().clone();
  }
  return copies;
}

// Keeps the output of a router's gate, with its graph.
class KeepLogits : public nn::CallHook {
 public:
  explicit KeepLogits(std::vector<at::Tensor>& logits) : logits_(logits) {}
  at::Tensor call(const at::Tensor& input, const Forward& forward) override {
    return logits_.emplace_back(forward(input));
  }

 private:
  std::vector<at::Tensor>& logits_;
};

struct WrittenLoop {
  std::shared_ptr<nn::Model> model;
  std::vector<std::shared_ptr<nn::TopKRouterImpl>> routers = {};
  std::vector<at::Tensor> logits = {};   // of each router in the last forward, (N, E)
  std::vector<at::Tensor> choices = {};  // tokens of the step so far that chose each expert, per router, (E)
  std::map<std::string, at::Tensor> exp_avg = {};
  std::map<std::string, at::Tensor> exp_avg_sq = {};
  double load_balancing_loss = 0;
  double router_z_loss = 0;

  // The sum of -log p(label) over the tokens that have a label.
  at::Tensor sum_of_losses(const at::Tensor& ids, const at::Tensor& labels) {
    logits.clear();
    nn::ModelInputs inputs;
    inputs.input_ids = ids;
    const at::Tensor logp = model->logits(model->forward(inputs).hidden_states).log_softmax(-1);  // (B, T, V)
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (int64_t b = 0; b < labels.size(0); ++b) {
      for (int64_t t = 0; t < labels.size(1); ++t) {
        const auto label = labels[b][t].item<int64_t>();
        sum = label == -100 ? sum : sum - logp[b][t][label];
      }
    }
    return sum;
  }

  // E sum_e f_e P_e and the mean of logsumexp(logits)^2, over the tokens of all routers together; see the papers in
  // nn::RouterLosses. `share` is the share of the step's labels in this micro-batch.
  at::Tensor router_losses(double share) {
    const at::Tensor all = at::cat(logits);  // (N of all routers, E)
    const at::Tensor probabilities = all.softmax(-1);
    at::Tensor chosen = at::zeros({kExperts}, at::kDouble);
    for (size_t i = 0; i < routers.size(); ++i) {
      const at::Tensor scores = logits[i].detach().softmax(-1) + routers[i]->expert_bias;
      const at::Tensor indices = std::get<1>(scores.topk(kTopK)).flatten();
      const at::Tensor counts = at::one_hot(indices, kExperts).sum(0);
      choices[i] += counts;
      chosen = chosen + counts;
    }
    const at::Tensor mean_choices = chosen / all.size(0);
    const at::Tensor balance = static_cast<double>(kExperts) * (mean_choices * probabilities.mean(0)).sum();
    const at::Tensor z = all.exp().sum(-1).log().square().mean();
    load_balancing_loss += share * balance.item<double>();
    router_z_loss += share * z.item<double>();
    return share * (kAuxLoss * balance + kZLoss * z);
  }

  // Torch's formulas, elementwise: weight decay is decoupled, and both moments are corrected for their start at zero.
  void adamw(const std::string& name, at::Tensor value, const at::Tensor& gradient, double lr, int64_t step) {
    at::Tensor& m = exp_avg.try_emplace(name, at::zeros_like(gradient)).first->second;
    at::Tensor& v = exp_avg_sq.try_emplace(name, at::zeros_like(gradient)).first->second;
    m = kBeta1 * m + (1 - kBeta1) * gradient;
    v = kBeta2 * v + (1 - kBeta2) * gradient * gradient;
    const at::Tensor m_hat = m / (1 - std::pow(kBeta1, static_cast<double>(step)));
    const at::Tensor v_hat = v / (1 - std::pow(kBeta2, static_cast<double>(step)));
    value.copy_(value - lr * kWeightDecay * value - lr * m_hat / (v_hat.sqrt() + kEps));
  }

  // The biases of experts with fewer tokens than the mean rise, the others fall, and their mean is constant.
  void move_expert_biases() {
    for (size_t i = 0; i < routers.size(); ++i) {
      const at::Tensor sign = (choices[i].mean() - choices[i]).sign();
      routers[i]->expert_bias.add_(kBiasRate * (sign - sign.mean()));
    }
  }

  Outcome run(const std::vector<Batch>& steps) {
    Outcome outcome;
    double num_tokens = 0;
    const auto parameters = nn::named_parameters(*model);
    for (int64_t step = 1; step <= kSteps; ++step) {
      const Batch& batch = steps[static_cast<size_t>(step - 1)];
      const auto labels_of_step = batch.at("labels").ne(-100).sum().item<double>();
      choices.clear();
      for (size_t i = 0; i < routers.size(); ++i) {
        choices.push_back(at::zeros({kExperts}, at::kDouble));
      }
      load_balancing_loss = router_z_loss = 0;

      double loss_of_step = 0;
      std::map<std::string, at::Tensor> gradients;
      for (int64_t first = 0; first < kBatchSize; first += kMicrobatchSize) {
        const at::Tensor ids = batch.at("input_ids").narrow(0, first, kMicrobatchSize);
        const at::Tensor labels = batch.at("labels").narrow(0, first, kMicrobatchSize);
        at::Tensor loss = sum_of_losses(ids, labels) / labels_of_step;
        loss_of_step += loss.item<double>();
        if (!routers.empty()) {
          loss = loss + router_losses(labels.ne(-100).sum().item<double>() / labels_of_step);
        }
        loss.backward();
        for (const auto& [name, parameter] : parameters) {
          at::Tensor value = parameter->value();
          if (value.grad().defined()) {
            gradients[name] = gradients.contains(name) ? gradients[name] + value.grad() : value.grad().clone();
            value.mutable_grad().reset();
          }
        }
      }

      double squares = 0;
      for (const auto& [name, gradient] : gradients) {
        squares += gradient.square().sum().item<double>();
      }
      const double norm = std::sqrt(squares);
      EXPECT_GT(norm, 2 * kMaxNorm) << "step " << step << " does not clip, and so tests less than it should";
      const double clip = std::min(1.0, kMaxNorm / (norm + 1e-6));  // as in torch.nn.utils.clip_grad_norm_
      const double lr = kLearningRate * kFactors[step - 1];
      num_tokens += static_cast<double>(batch.at("input_ids").numel());  // none is padding

      const at::NoGradGuard no_grad;
      for (const auto& [name, parameter] : parameters) {
        if (gradients.contains(name)) {
          adamw(name, parameter->value(), clip * gradients[name], lr, step);
        }
      }
      move_expert_biases();

      outcome.logged["loss"].push_back(loss_of_step);
      outcome.logged["grad_norm"].push_back(norm);
      outcome.logged["lr"].push_back(lr);
      outcome.logged["num_tokens"].push_back(num_tokens);
      outcome.logged["step_labels"].push_back(labels_of_step);
      if (!routers.empty()) {
        outcome.logged["load_balancing_loss"].push_back(load_balancing_loss);
        outcome.logged["router_z_loss"].push_back(router_z_loss);
        double most = 0;  // load of the fullest expert, in loads of the mean one
        for (const at::Tensor& of_layer : choices) {
          most = std::max(most, (of_layer.max() / of_layer.mean()).item<double>());
        }
        outcome.logged["expert_load_max"].push_back(most);
      }
    }
    outcome.weights = copies_of(*model);
    return outcome;
  }
};

}  // namespace lehr::train::written_out
