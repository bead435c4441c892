// JSON documents as value trees, and back.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "lehr/base/node.h"

namespace lehr {

/// Parses JSON. `name` is the file's, for messages. Syntax errors are usage errors with line and column, a key that
/// stands twice in one object is one with its place.
Node parse_json(std::string_view text, const std::string& name);
Node parse_json_file(const std::filesystem::path& path);

/// Writes JSON: on one line, or indented by two spaces. Numbers read back as the same bits; those that are not finite
/// are a usage error, since JSON has none.
std::string to_json(const Node& node, bool indented = false);

}  // namespace lehr
