// The actions of a pipeline schedule: computations, sends and receives, and their text form.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lehr::pipeline {

/// Kinds of actions. The backward pass of a micro-batch through a stage is either one backward_full, or a
/// backward_input (dgrad) and, any time later, a backward_weight (wgrad), as in zero-bubble schedules
/// (https://arxiv.org/abs/2401.10241).
enum class ActionKind {
  forward,           ///< "2F0"
  backward_full,     ///< "2B0": gradients of the stage's inputs and of its weights
  backward_input,    ///< "2I0": gradients of the stage's inputs (dgrad)
  backward_weight,   ///< "2W0": gradients of the stage's weights (wgrad)
  send_forward,      ///< "2SEND_F0": the outputs of stage 2, to stage 3
  receive_forward,   ///< "2RECV_F0": the inputs of stage 2, from stage 1
  send_backward,     ///< "2SEND_B0": the gradients of stage 2's inputs, to stage 1
  receive_backward,  ///< "2RECV_B0": the gradients of stage 2's outputs, from stage 3
};

/// One action on one micro-batch of one stage.
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

/// One entry of a rank's list: an action, or several that may overlap ("0F3|3B1"). No member of an entry depends on
/// another member.
using Actions = std::vector<Action>;

/// Returns "F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B" or "RECV_B".
std::string_view name_of(ActionKind kind);
std::string to_string(const Action& action);
std::string to_string(const Actions& actions);
/// The inverse of to_string. Throws a usage error that quotes the text.
Actions parse_actions(std::string_view text);

}  // namespace lehr::pipeline
