// The [peft] section: the parameters that a run trains.
#pragma once

#include <optional>
#include <string>

#include "lehr/config/fields.h"
#include "lehr/peft/method.h"

namespace lehr::peft {

/// The keys of [peft]; fields() describes each.
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
  /// True if the run's checkpoints are adapters instead of whole models.
  bool has_adapters() const { return method == "lora"; }
  /// Returns the method for inject_peft_and_freeze; not for "none". The module `head`, if given, is fully tuned in
  /// addition: a classifier's head, which is initialized randomly.
  Method to_method(const std::string& head = "") const;
};

}  // namespace lehr::peft
