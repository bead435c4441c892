// The [activation_checkpoint] section of a run's config.
#include <charconv>
#include <string_view>
#include <variant>

#include "lehr/base/error.h"
#include "lehr/train/config.h"

namespace lehr::train {

void ActivationCheckpointConfig::fields(FieldVisitor& v) {
  v.optional(
      "mode",
      mode,
      "Activation checkpointing. none: recompute only norms, rotary embeddings and gates, as all modes do (fastest); "
      "selective: more, see selective_ac_option; full: every layer; auto: on CPUs the mode that recomputes least and "
      "fits into memory, on GPUs or with CPU offload selective with \"op 2\". All modes give bitwise equal losses.",
      one_of({"auto", "none", "selective", "full"}));
  v.optional(
      "selective_ac_option",
      selective_ac_option,
      "Selective mode. \"n\": recompute every n-th layer; \"op\": in every layer recompute the matmul outputs that "
      "backward reads; \"op n\": the same in every n-th layer. \"op 2\" needs a third less activation memory than none "
      "(a quarter less on a GPU) and 2 to 7 % more time.");
}

namespace {
constexpr const char* kSelectiveKey = "activation_checkpoint.selective_ac_option";

// Returns the policy that the option names, or an error message.
std::variant<nn::ActivationCheckpointing, std::string> parse_selective(const std::string& option) {
  using nn::ActivationCheckpointing;
  if (option == "op") {
    return ActivationCheckpointing::matmuls_of_every_nth(1);
  }
  std::string_view number = option;
  const bool matmuls_only = number.starts_with("op ");
  number.remove_prefix(matmuls_only ? 3 : 0);
  int64_t n = 0;
  const auto [rest, error] = std::from_chars(number.data(), number.data() + number.size(), n);
  if (error != std::errc() || rest != number.data() + number.size() || n < 1) {
    return fmt::format(
        R"(expected "n", "op" or "op n" with a positive integer n, such as "2" or "op 2"; found "{}")", option);
  }
  return matmuls_only ? ActivationCheckpointing::matmuls_of_every_nth(n) : ActivationCheckpointing::every_nth(n);
}
}  // namespace

nn::ActivationCheckpointing ActivationCheckpointConfig::policy() const {
  if (mode == "auto") {
    return nn::ActivationCheckpointing::matmuls_of_every_nth(2);
  }
  if (mode != "selective") {
    return mode == "full";
  }
  const auto parsed = parse_selective(selective_ac_option);
  if (const auto* problem = std::get_if<std::string>(&parsed)) {
    fail("{}: {}", kSelectiveKey, *problem);
  }
  return std::get<nn::ActivationCheckpointing>(parsed);
}

void ActivationCheckpointConfig::check(Problems& problems) const {
  const auto parsed = parse_selective(selective_ac_option);
  if (const auto* problem = std::get_if<std::string>(&parsed); mode == "selective" && problem != nullptr) {
    problems.add(kSelectiveKey, *problem);
  }
  if (const std::string usual = ActivationCheckpointConfig().selective_ac_option;
      mode == "auto" && selective_ac_option != usual) {
    problems.add(
        kSelectiveKey,
        fmt::format(
            R"(activation_checkpoint.mode = "auto" chooses the option itself; set mode = "selective" for "{}", or )"
            R"(leave this key at "{}")",
            selective_ac_option,
            usual));
  }
}

}  // namespace lehr::train
