// Published names of tensors that differ in parts from those of decoder_state_map.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lehr/state/state_map.h"

namespace lehr::model {

/// Replaces the first `from` in a name by `to`. Returns whether there is one.
inline bool replace_in_name(std::string& name, std::string_view from, std::string_view to) {
  const size_t at = name.find(from);
  if (at != std::string::npos) {
    name.replace(at, from.size(), to);
  }
  return at != std::string::npos;
}

/// Returns `map` with stored_name(name) in place of the name of each stored tensor.
template <class StoredName>
state::StateMap with_stored_names(const state::StateMap& map, const StoredName& stored_name) {
  std::vector<std::pair<std::string, std::string>> names;
  for (const std::string& name : map.input_names()) {
    names.emplace_back(stored_name(name), name);
  }
  return state::sequential({state::rename(names), map});
}

}  // namespace lehr::model
