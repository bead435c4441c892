// Parsing and writing of JSON documents as value trees.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "lehr/config/node.h"

namespace lehr {

/// Parses JSON in linear time. `name` is the file's name in messages. Throws a usage error: with line and column for
/// invalid syntax; with the key for a duplicate key in one object, for more than 256 levels, and for more than two
/// million values. Infinity, which Python writes although JSON lacks it, is read as 3.4e+38.
Node parse_json(std::string_view text, const std::string& name);
/// Parses a file. Throws as parse_json and read_file do.
Node parse_json_file(const std::filesystem::path& path);

/// Writes JSON: on one line, or indented by two spaces. Numbers round-trip bitwise. Throws a usage error for non-finite
/// numbers, which JSON cannot represent.
std::string to_json(const Node& node, bool indented = false);

}  // namespace lehr
