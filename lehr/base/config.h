// Config structs from files and command lines, and back to text: the visitors of base/fields.h.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lehr/base/error.h"
#include "lehr/base/fields.h"
#include "lehr/base/node.h"

namespace lehr {

/// Where a config comes from, weakest first: the struct's defaults, the file, the overrides.
struct ConfigSources {
  std::optional<std::filesystem::path> file;
  /// Dotted keys with values as TOML writes them; a bare word is a string.
  std::vector<std::pair<std::string, std::string>> overrides;
};

/// File and overrides as one tree, each value with its origin. Throws usage errors for syntax.
Node merge_sources(const ConfigSources& sources);

/// Any struct with `fields(FieldVisitor&)`, and perhaps `check(Problems&) const`, without its type.
struct ConfigObject {
  std::function<void(FieldVisitor&)> fields;
  std::function<void(Problems&)> check;  ///< May be empty.

  template <class T>
  static ConfigObject of(T& config) {
    ConfigObject object{[&config](FieldVisitor& v) { config.fields(v); }, {}};
    if constexpr (requires(const T& c, Problems& p) { c.check(p); }) {
      object.check = [&config](Problems& problems) { std::as_const(config).check(problems); };
    }
    return object;
  }
};

/// Fills `object` from `node`. Throws one usage error that lists everything that is wrong: unknown keys (with the key
/// that was probably meant), missing ones, wrong types, broken rules, and what check() finds, each with file, line and
/// column. `name` stands for the source in messages about missing keys.
void load_object(const ConfigObject& object, const Node& node, const std::string& name);

/// The config of type T from these sources.
template <class T>
T load_config(const ConfigSources& sources) {
  T config{};
  load_object(ConfigObject::of(config), merge_sources(sources), sources.file ? sources.file->string() : "command line");
  return config;
}

/// `message` behind the place where its subject was set, if it begins with a dotted key that `sources` (or a table
/// around it) holds: "run.toml:7:3: training.seq_len: ...".
std::string with_place(const Node& sources, const std::string& message);

/// Runs `body`, which uses the config that was read from `sources`: a usage error about one of its keys gets the place
/// where the key was set.
template <class Body>
auto with_places(const Node& sources, Body body) {
  try {
    return body();
  } catch (const Error& error) {
    const std::string placed = with_place(sources, error.what());
    if (placed == error.what()) {
      throw;  // as what it is
    }
    throw Error(error.kind(), placed);
  }
}

/// A struct from a JSON or TOML tree.
template <class T>
T from_node(const Node& node, const std::string& name) {
  T config{};
  load_object(ConfigObject::of(config), node, name);
  return config;
}

/// The fields as a tree; what is not given is left out.
Node object_to_node(const ConfigObject& object);
/// The fields as TOML, each with its sentence above it; reads back as the same config.
std::string object_to_toml(const ConfigObject& object);
/// A table of all fields with type, default, rule and sentence, for people.
std::string object_help(const ConfigObject& object);

template <class T>
Node to_node(const T& config) {
  return object_to_node(ConfigObject::of(const_cast<T&>(config)));
}
template <class T>
std::string to_toml(const T& config) {
  return object_to_toml(ConfigObject::of(const_cast<T&>(config)));
}
template <class T>
std::string help_text() {
  T config{};
  return object_help(ConfigObject::of(config));
}

}  // namespace lehr
