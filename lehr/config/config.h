// Loads config structs from files and command lines and prints them; built on the visitors of config/fields.h.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lehr/base/error.h"
#include "lehr/config/fields.h"
#include "lehr/config/node.h"

namespace lehr {

/// Dotted keys with values in TOML syntax; a bare word is a string.
using Overrides = std::vector<std::pair<std::string, std::string>>;

/// The sources of a config in increasing precedence: the struct's defaults, the file, the overrides.
struct ConfigSources {
  std::optional<std::filesystem::path> file;
  Overrides overrides;
  /// If set, the command line has the overrides as --option.KEY, and messages say so.
  std::string option = "";
};

/// Merges file and overrides into one tree, each value with its origin. Throws a usage error for invalid syntax.
Node merge_sources(const ConfigSources& sources);

/// A type-erased struct with `fields(FieldVisitor&)` and optionally `check(Problems&) const`.
struct ConfigObject {
  std::function<void(FieldVisitor&)> fields;
  std::function<void(Problems&)> check;  ///< May be empty.

  template <class T>
  static ConfigObject of(T& config) {
    ConfigObject object{[&config](FieldVisitor& v) { config.fields(v); }, {}};
    if constexpr (requires(const T& c, Problems& p) { c.check(p); }) {
      object.check = [&config](Problems& problems) {
        if constexpr (requires { config.complete(); }) {
          config.complete();
        }
        std::as_const(config).check(problems);
      };
    }
    return object;
  }
};

/// Fills `object` from `node`. Throws one usage error that lists every problem: unknown keys (with the closest known
/// key), missing keys, wrong types, violated rules, and what check() reports, each with file, line and column. `name`
/// is the name of the source in messages about missing keys.
void load_object(const ConfigObject& object, const Node& node, const std::string& name);

/// Loads a config of type T from these sources.
template <class T>
T load_config(const ConfigSources& sources) {
  T config{};
  load_object(ConfigObject::of(config), merge_sources(sources), sources.file ? sources.file->string() : "command line");
  return config;
}

/// Prefixes `message` with the position where its subject was set, if it begins with a dotted key that `sources` (or an
/// enclosing table) holds: "run.toml:7:3: training.seq_len: ...".
std::string with_place(const Node& sources, const std::string& message);

/// Runs `body`, which uses the config that was read from `sources`. An Error about one of its keys gets the position
/// where the key was set.
template <class Body>
auto with_places(const Node& sources, Body body) {
  try {
    return body();
  } catch (const Error& error) {
    const std::string placed = with_place(sources, error.what());
    if (placed == error.what()) {
      throw;  // rethrows the original type
    }
    throw Error(error.kind(), placed);
  }
}

/// Builds a struct from a JSON or TOML tree.
template <class T>
T from_node(const Node& node, const std::string& name) {
  T config{};
  load_object(ConfigObject::of(config), node, name);
  return config;
}

/// Returns the fields as a tree, without optionals that are empty.
Node object_to_node(const ConfigObject& object);
/// Returns the fields as TOML, each with its help sentence above it. The text loads as the same config.
std::string object_to_toml(const ConfigObject& object);
/// Returns a readable table of all fields with type, default, rule and help sentence.
std::string object_help(const ConfigObject& object);

/// object_to_node, object_to_toml and object_help for a config struct.
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
