// Factories of the kinds of tokenizers, for load_tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace lehr::data {

class Tokenizer;

/// Returns `encode(part)` of each part of a text between the offsets `cuts`.
template <class Encode>
std::vector<std::vector<int32_t>> encode_each_part(
    std::string_view text, std::span<const size_t> cuts, const Encode& encode) {
  std::vector<std::vector<int32_t>> parts;
  size_t begin = 0;
  for (const size_t cut : cuts) {
    parts.push_back(encode(text.substr(begin, cut - begin)));
    begin = cut;
  }
  parts.push_back(encode(text.substr(begin)));
  return parts;
}

/// A tokenizer with bytes as ids, and 256 as the end of a document (it decodes to nothing).
std::unique_ptr<Tokenizer> make_byte_tokenizer();

/// BPE from tokenizer.json (see read_tokenizer). `files` are those of its folder.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(
    const std::filesystem::path& file, std::vector<std::filesystem::path> files);

}  // namespace lehr::data
