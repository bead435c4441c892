// Finds modules by a pattern over their names, and says what was near when none is found.
#pragma once

#include <string>
#include <vector>

namespace lehr::peft {

/// Those of `names` that the regular expression `pattern` matches as a whole, in order. Throws a usage error that
/// begins with `subject` (a key of the config): for a pattern that is no regular expression, and, when nothing matches,
/// with the nearest names of what was looked for (`what`, "linear layer").
std::vector<std::string> matching(
    const std::string& pattern,
    const std::vector<std::string>& names,
    const std::string& subject,
    const std::string& what);

}  // namespace lehr::peft
