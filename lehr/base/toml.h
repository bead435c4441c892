// TOML documents as value trees.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "lehr/base/node.h"

namespace lehr {

/// Parses TOML; every value knows its line and column. `name` is the file's, for messages. Syntax errors, a key that is
/// given twice among them, are usage errors with line and column.
Node parse_toml(std::string_view text, const std::string& name);

/// A value as TOML writes it: quoted strings, numbers that read back as the same bits. Not for tables.
std::string toml_value(const Node& node);

}  // namespace lehr
