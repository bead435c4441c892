// What a rank of a pipeline does, one action after another.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lehr::pipeline {

/// Kinds of actions. A microbatch's backward through a stage is either one backward_full, or a backward_input and, any
/// time later, a backward_weight (zero bubble, https://arxiv.org/abs/2401.10241).
enum class ActionKind {
  forward,           ///< "2F0"
  backward_full,     ///< "2B0": gradients of the stage's inputs and of its weights
  backward_input,    ///< "2I0": those of its inputs
  backward_weight,   ///< "2W0": those of its weights
  send_forward,      ///< "2SEND_F0": the outputs of stage 2, to stage 3
  receive_forward,   ///< "2RECV_F0": the inputs of stage 2, from stage 1
  send_backward,     ///< "2SEND_B0": the gradients of stage 2's inputs, to stage 1
  receive_backward,  ///< "2RECV_B0": the gradients of stage 2's outputs, from stage 3
};

/// One action on one microbatch of one stage.
struct Action {
  ActionKind kind;
  int64_t stage;
  int64_t microbatch;
  auto operator<=>(const Action&) const = default;

  bool is_compute() const { return kind <= ActionKind::backward_weight; }
  bool is_backward() const { return kind == ActionKind::backward_full || kind == ActionKind::backward_input; }
  bool is_send() const { return kind == ActionKind::send_forward || kind == ActionKind::send_backward; }
  bool is_receive() const { return kind == ActionKind::receive_forward || kind == ActionKind::receive_backward; }
};

/// One entry of a rank's list: an action, or several that may overlap ("0F3|3B1"). None of them needs what another one
/// of the same entry gives.
using Actions = std::vector<Action>;

/// "F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B".
std::string_view name_of(ActionKind kind);
std::string to_string(const Action& action);
std::string to_string(const Actions& actions);
/// The reverse. Throws a usage error that quotes the text.
Actions parse_actions(std::string_view text);

}  // namespace lehr::pipeline
