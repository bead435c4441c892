// Shared code of the tests of adapters: a small model, and a matcher for errors.
#pragma once

#include <gmock/gmock.h>

#include <memory>
#include <string>

#include "lehr/base/error.h"
#include "lehr/model/qwen3_dense/family.h"

namespace lehr::peft::testing {

/// Matches an action that ends with an error whose message contains `text`.
inline auto fails_with(const std::string& text) {
  return ::testing::Throws<Error>(::testing::Property(&Error::what, ::testing::HasSubstr(text)));
}

/// A Qwen3 of 40 ids and two layers.
inline std::unique_ptr<descriptor::ModelArgs> tiny(bool tied = false) {
  auto args = model::qwen3_dense_family().flavors.at("debugmodel")();
  descriptor::ModelOverrides overrides;
  overrides.hidden_size = 16;
  overrides.intermediate_size = 24;
  overrides.num_hidden_layers = 2;
  overrides.num_attention_heads = 2;
  overrides.num_key_value_heads = 1;
  overrides.head_dim = 8;
  overrides.vocab_size = 40;
  overrides.tie_word_embeddings = tied;
  args->apply(overrides);
  return args;
}

}  // namespace lehr::peft::testing
