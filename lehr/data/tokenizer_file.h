// Locating and reading of tokenizer files.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace lehr::data {

/// Files that name the tokens eos_token, bos_token and pad_token.
inline constexpr const char* kTokenizerConfigFile = "tokenizer_config.json";
inline constexpr const char* kSpecialTokensFile = "special_tokens_map.json";

/// Returns the content of a file, decompressed like open_bytes (by extension). Throws a usage error that names the file
/// if it cannot be read, or if its compressed content is damaged or truncated.
std::string read_whole_file(const std::filesystem::path& path);

/// Returns whether the file has the name of a tokenizer in a model's folder: tokenizer.json or tokenizer.json.gz.
bool is_tokenizer_file(const std::filesystem::path& file);

/// Returns `folder/name` or `folder/name.gz`, whichever exists.
std::optional<std::filesystem::path> find_file(const std::filesystem::path& folder, const char* name);

}  // namespace lehr::data
