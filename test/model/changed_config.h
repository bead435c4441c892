// The config.json of a model with other values, for tests of what families read and refuse.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lehr/base/error.h"
#include "lehr/config/json.h"
#include "lehr/descriptor/model_args.h"

namespace lehr::model::test {

/// Keys and JSON values, which are set in this order; "absent" removes a key.
using Changes = std::vector<std::pair<std::string, std::string>>;

/// The model of a config.json with these changes. Throws a usage error if the family refuses it.
inline std::unique_ptr<descriptor::ModelArgs> changed(
    const descriptor::ModelFamily& family, Node config, const Changes& changes) {
  for (const auto& [key, json] : changes) {
    if (json == "absent") {
      config.erase(key);
    } else {
      config.set(key, parse_json(json, "value"));
    }
  }
  auto args = family.from_hf_config(parse_json(to_json(config), "config.json"));
  args->check("config.json: ");
  return args;
}

/// The message of the usage error for it, or "accepted".
inline std::string problem_of_changed(
    const descriptor::ModelFamily& family, const Node& config, const Changes& changes) {
  try {
    changed(family, config, changes);
    return "accepted";
  } catch (const Error& error) {
    return error.kind() == ErrorKind::usage ? error.what() : "another kind of error";
  }
}

}  // namespace lehr::model::test
