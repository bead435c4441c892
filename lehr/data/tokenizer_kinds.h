// Factories of the kinds of tokenizers, for load_tokenizer.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

namespace lehr::data {

class Tokenizer;

/// A tokenizer with bytes as ids, and 256 as the end of a document (it decodes to nothing).
std::unique_ptr<Tokenizer> make_byte_tokenizer();

/// BPE from tokenizer.json (see read_tokenizer). `files` are those of its folder.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(
    const std::filesystem::path& file,
    const std::optional<std::filesystem::path>& config,
    std::vector<std::filesystem::path> files);

}  // namespace lehr::data
