// Small models of families with states (gated DeltaNet, Mamba-2), and what holds for each of them.
#pragma once

#include <gtest/gtest.h>

#include "lehr/descriptor/model_args.h"
#include "lehr/nn/model.h"

namespace lehr::model::test {

/// A small flavor of the family with other sizes, in float64.
inline std::shared_ptr<nn::Model> model_with_states(
    const descriptor::ModelFamily& family, const std::string& flavor = "debugmodel") {
  const auto args = family.from_flavor(flavor);
  descriptor::ModelOverrides sizes;
  sizes.hidden_size = 24;
  sizes.num_hidden_layers = 4;
  sizes.vocab_size = 31;
  sizes.initializer_range = 0.4;
  args->apply(sizes);
  auto model = args->build({});
  nn::materialize(*model, at::kCPU, at::kDouble);
  model->reset_parameters({.seed = 5});
  model->eval();
  return model;
}

inline double worst_error(const at::Tensor& actual, const at::Tensor& expected) {
  return ((actual - expected).abs().max() / expected.abs().max()).item<double>();
}

/// Compares documents in one row with the same documents alone.
inline void expect_packed_documents_equal_separate_ones(nn::Model& model) {
  const at::NoGradGuard no_grad;
  const std::vector<int64_t> lengths{2, 70, 1, 5, 130};
  const at::Tensor ids = at::randint(31, {1, 208}, at::kLong);
  std::vector<at::Tensor> positions, alone;
  int64_t first = 0;
  for (const int64_t length : lengths) {
    positions.push_back(at::arange(length));
    alone.push_back(model.forward({.input_ids = ids.narrow(1, first, length)}).hidden_states);
    first += length;
  }
  nn::ModelInputs inputs;
  inputs.input_ids = ids;
  inputs.position_ids = at::cat(positions).unsqueeze(0);
  inputs.attention_mask.document_ids = at::repeat_interleave(at::arange(5), at::tensor(lengths)).unsqueeze(0);
  EXPECT_LE(worst_error(model.forward(inputs).hidden_states, at::cat(alone, 1)), 1e-12);
  EXPECT_GT(worst_error(model.forward({.input_ids = ids}).hidden_states, at::cat(alone, 1)), 0.01)
      << "leaks would not show";
}

/// Compares calls with caches, of one or more tokens each, with one call.
inline void expect_decoding_equals_one_forward(nn::Model& model) {
  const at::NoGradGuard no_grad;
  const at::Tensor ids = at::randint(31, {2, 80}, at::kLong);
  const at::Tensor whole = model.forward({.input_ids = ids}).hidden_states;
  nn::KeyValueCaches caches(static_cast<size_t>(model.num_local_layers()));
  int64_t first = 0;
  for (const int64_t count : {67, 1, 1, 3, 8}) {
    nn::ModelInputs inputs;
    inputs.input_ids = ids.narrow(1, first, count);
    inputs.caches = &caches;
    EXPECT_LE(worst_error(model.forward(inputs).hidden_states, whole.narrow(1, first, count)), 1e-12);
    first += count;
  }
}

}  // namespace lehr::model::test
