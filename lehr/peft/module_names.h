// Selection of modules by a pattern over their names, with suggestions if none matches.
#pragma once

#include <string>
#include <vector>

namespace lehr::peft {

/// Returns those of `names` that the regular expression `pattern` matches as a whole, in order. Throws a usage error
/// that begins with `subject` (a key of the config) for an invalid regular expression, and if nothing matches, with the
/// nearest names of the candidates (`what`, such as "linear layer").
std::vector<std::string> matching(
    const std::string& pattern,
    const std::vector<std::string>& names,
    const std::string& subject,
    const std::string& what);

}  // namespace lehr::peft
