// A check of JSON text before a parser without limits builds a tree of it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lehr {

/// Throws a usage error that begins with `subject` if objects and lists are nested more than `most_levels` deep, since
/// copying them would overflow the stack, or if an object has more than 10,000 keys, for which nlohmann::ordered_json
/// takes quadratic time. Invalid JSON passes: the parser refuses it.
void require_json_shape(std::string_view text, const std::string& subject, size_t most_levels = 200);

}  // namespace lehr
