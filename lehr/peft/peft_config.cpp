#include "lehr/peft/peft_config.h"

#include "lehr/base/name_pattern.h"

namespace lehr::peft {

void PeftConfig::fields(FieldVisitor& v) {
  v.optional(
      "method",
      method,
      "none: train all parameters. lora: train low-rank adapters and the modules of full_tune_pattern. full_tune: "
      "train only those modules.",
      one_of({"none", "lora", "full_tune"}));
  v.optional(
      "target_pattern",
      target_pattern,
      "lora: regular expression that must match the whole name of a linear layer, such as \".*\\\\.(q|v)_proj\".");
  v.optional(
      "full_tune_pattern",
      full_tune_pattern,
      "Regular expression that must match the whole name of a module; its weights are trained without adapters.");
  v.optional("r", r, "lora: rank of the adapters.", positive());
  v.optional("alpha", alpha, "lora: scaling numerator; adapters are scaled by alpha / r.", positive());
  v.optional("dropout", dropout, "lora: dropout probability of the adapters' inputs.", from_below(0, 1));
  v.optional("use_rslora", use_rslora, "lora: scale by alpha / sqrt(r) instead of alpha / r (rsLoRA).");
  v.optional(
      "init_from",
      init_from,
      "lora: adapter folder (Lehr's or Hugging Face PEFT's) with the initial adapters of a new run.");
}

void PeftConfig::check(Problems& problems) const {
  const auto regular = [&](const char* key, const std::string& pattern) {
    if (const std::string problem = NamePattern::problem(pattern); !problem.empty()) {
      problems.add(key, problem);
    }
  };
  regular("peft.target_pattern", target_pattern);
  regular("peft.full_tune_pattern", full_tune_pattern.value_or(""));
  if (method == "full_tune" && !full_tune_pattern) {
    problems.add("peft.full_tune_pattern", "peft.method = \"full_tune\" requires it to select the modules to train");
  }
  if (method == "none" && full_tune_pattern) {
    problems.add("peft.full_tune_pattern", "has no effect while peft.method is \"none\", which trains all parameters");
  }
  const PeftConfig usual;
  for (const auto& [key, is_set] :
       {std::pair("peft.target_pattern", target_pattern != usual.target_pattern),
        {"peft.r", r != usual.r},
        {"peft.alpha", alpha != usual.alpha},
        {"peft.dropout", dropout != usual.dropout},
        {"peft.use_rslora", use_rslora != usual.use_rslora}}) {
    if (method != "lora" && is_set) {
      problems.add(
          key, "has no effect while peft.method is \"" + method + "\"; remove it, or set peft.method to \"lora\"");
    }
  }
  if (method != "lora" && init_from) {
    problems.add("peft.init_from", "names adapters, which require peft.method = \"lora\"");
  }
}

namespace {
// Returns the pattern that matches only this name.
std::string escaped(const std::string& name) {
  std::string pattern;
  for (const char c : name) {
    pattern += c == '.' ? "\\." : std::string(1, c);
  }
  return pattern;
}
}  // namespace

Method PeftConfig::to_method(const std::string& head) const {
  const Lora lora{
      .module_name_pattern = target_pattern, .r = r, .alpha = alpha, .dropout = dropout, .use_rslora = use_rslora};
  Stack stack;
  if (method == "lora") {
    stack.methods.emplace_back().kind = lora;
  }
  if (full_tune_pattern) {
    stack.methods.emplace_back().kind = FullTune{*full_tune_pattern};
  }
  if (!head.empty()) {
    stack.methods.emplace_back().kind = FullTune{escaped(head)};
  }
  Method both;
  both.kind = std::move(stack);
  return both;
}

}  // namespace lehr::peft
