// Locating and reading of tokenizer files.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace lehr::data {

/// Returns the content of a file, decompressed like open_bytes (by extension). Throws a usage error that names the file
/// if it cannot be read, or if its compressed content is damaged or truncated.
std::string read_whole_file(const std::filesystem::path& path);

/// Returns `folder/name` or `folder/name.gz`, whichever exists.
std::optional<std::filesystem::path> find_file(const std::filesystem::path& folder, const char* name);

}  // namespace lehr::data
