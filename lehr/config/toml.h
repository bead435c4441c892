// Parsing of TOML documents as value trees.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "lehr/config/node.h"

namespace lehr {

/// Parses TOML; every value has its line and column. `name` is the file's name in messages. Throws a usage error with
/// line and column for invalid syntax and for duplicate keys.
Node parse_toml(std::string_view text, const std::string& name);

/// Formats a value as TOML: quoted strings, numbers that round-trip bitwise. Not for tables.
std::string toml_value(const Node& node);

}  // namespace lehr
