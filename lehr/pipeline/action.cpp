// Conversion of actions to and from text.
#include "lehr/pipeline/action.h"

#include <array>
#include <charconv>
#include <utility>

#include "lehr/base/error.h"

namespace lehr::pipeline {
namespace {

constexpr std::array<std::pair<ActionKind, std::string_view>, 8> kKindNames{{
    {ActionKind::forward, "F"},
    {ActionKind::backward_full, "B"},
    {ActionKind::backward_input, "I"},
    {ActionKind::backward_weight, "W"},
    {ActionKind::send_forward, "SEND_F"},
    {ActionKind::receive_forward, "RECV_F"},
    {ActionKind::send_backward, "SEND_B"},
    {ActionKind::receive_backward, "RECV_B"},
}};

// Parses a number at the start of `text` and removes it. Returns false if there is none.
bool take_number(std::string_view& text, int64_t& number) {
  int32_t value = 0;  // 32 bits: a larger stage or micro-batch is a typing error
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0) {
    return false;
  }
  number = value;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

Action parse_action(std::string_view whole, std::string_view entry) {
  std::string_view text = whole;
  Action action{};
  bool good = take_number(text, action.stage);
  const std::string_view name = text.substr(0, text.find_first_of("0123456789"));
  text.remove_prefix(name.size());
  bool known = false;
  for (const auto& [kind, kind_name] : kKindNames) {
    if (name == kind_name) {
      action.kind = kind;
      known = true;
    }
  }
  good = good && known && take_number(text, action.microbatch) && text.empty();
  require(
      good,
      "action \"{}\"{}: expected a stage, one of F B I W SEND_F RECV_F SEND_B RECV_B, and a micro-batch, such as 2F0",
      whole,
      whole == entry ? "" : fmt::format(" of \"{}\"", entry));
  return action;
}

}  // namespace

std::string_view name_of(ActionKind kind) {
  return kKindNames[static_cast<size_t>(kind)].second;
}

std::string to_string(const Action& action) {
  return fmt::format("{}{}{}", action.stage, name_of(action.kind), action.microbatch);
}

std::string to_string(const Actions& actions) {
  std::string text;
  for (const Action& action : actions) {
    text += (text.empty() ? "" : "|") + to_string(action);
  }
  return text;
}

Actions parse_actions(std::string_view text) {
  Actions actions;
  std::string_view rest = text;
  while (true) {
    const size_t bar = rest.find('|');
    actions.push_back(parse_action(rest.substr(0, bar), text));
    if (bar == std::string_view::npos) {
      return actions;
    }
    rest.remove_prefix(bar + 1);
  }
}

}  // namespace lehr::pipeline
