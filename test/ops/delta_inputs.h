// Random inputs of the gated delta rule, for its tests on the CPU and on a GPU.
#pragma once

#include "lehr/ops/gated_delta_rule/gated_delta_rule.h"
#include "test/ops/against_reference.h"

namespace lehr::ops::test {

inline constexpr StateUpdate kUpdates[] = {StateUpdate::correct, StateUpdate::add};

inline std::string name_of(StateUpdate update) {
  return update == StateUpdate::correct ? " correct" : " add";
}

struct DeltaSizes {
  int64_t rows, tokens, key_heads, value_heads, size, value_size;
};

/// Query, key, value, logarithm of the decay, beta, initial state. Decays are from weak to strong.
inline Tensors random_inputs(const DeltaSizes& s, at::ScalarType type) {
  const at::Tensor decay = -at::rand({s.rows, s.tokens, s.value_heads}, at::kDouble).pow(3) * 4;
  const at::Tensor beta = at::rand({s.rows, s.tokens, s.value_heads}, at::kDouble);
  return {
      random_tensor({s.rows, s.tokens, s.key_heads, s.size}, type),
      random_tensor({s.rows, s.tokens, s.key_heads, s.size}, type),
      random_tensor({s.rows, s.tokens, s.value_heads, s.value_size}, type),
      decay.to(type),
      beta.to(type),
      random_tensor({s.rows, s.value_heads, s.size, s.value_size}, type)};
}

inline GatedDeltaInputs inputs_of(
    const Tensors& in, const at::Tensor& lengths, bool with_state, StateUpdate update = StateUpdate::correct) {
  const auto wide = in[0].scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {
      .query = in[0],
      .key = in[1],
      .value = in[2],
      .decay = in[3].to(wide),
      .beta = in[4].to(wide),
      .initial_state = with_state ? in[5].to(wide) : at::Tensor(),
      .cumulative_lengths = lengths,
      .update = update};
}

}  // namespace lehr::ops::test
