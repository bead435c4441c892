// The section `[peft]`: which part of a model a run trains.
#pragma once

#include <optional>
#include <string>

#include "lehr/base/fields.h"
#include "lehr/peft/method.h"

namespace lehr::peft {

struct PeftConfig {
  std::string method = "none";
  std::string target_pattern = ".*_proj";
  std::optional<std::string> full_tune_pattern = {};
  int64_t r = 8;
  double alpha = 16;
  double dropout = 0;
  bool use_rslora = false;
  std::optional<std::string> init_from = {};

  void fields(FieldVisitor& v);
  void check(Problems& problems) const;

  bool enabled() const { return method != "none"; }
  /// Whether the run's checkpoints are adapters, not whole models.
  bool has_adapters() const { return method == "lora"; }
  /// What inject_peft_and_freeze takes; not for "none". The module `head`, if given, is tuned besides: a classifier's
  /// head, which starts from random values.
  Method to_method(const std::string& head = "") const;
};

}  // namespace lehr::peft
