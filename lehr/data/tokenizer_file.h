// Files of a tokenizer: where they are, and whole in memory.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace lehr::data {

/// The content of a file, unpacked as open_bytes does (by the ending of its name). Throws a usage error that names the
/// file if it cannot be read, or if its packed content is damaged or cut off.
std::string read_whole_file(const std::filesystem::path& path);

/// `folder/name`, or `folder/name.gz`, whichever exists.
std::optional<std::filesystem::path> find_file(const std::filesystem::path& folder, const char* name);

}  // namespace lehr::data
