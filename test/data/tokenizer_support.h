// Shared code of the tests of tokenizers: the fixtures, read once.
#pragma once

#include <nlohmann/json.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lehr/data/byte_source.h"
#include "lehr/data/tokenizer.h"
#include "lehr/data/tokenizer_file.h"
#include "support.h"

namespace lehr::data {

inline std::filesystem::path fixture(const std::string& name) {
  return repository("test/data/tokenizer") / name;
}

/// The tokenizer of Qwen3, loaded once, since it is immutable.
inline const Tokenizer& qwen3() {
  static const auto tokenizer = load_tokenizer(fixture("qwen3").string());
  return *tokenizer;
}

inline std::vector<nlohmann::json> read_jsonl(const std::string& name) {
  std::vector<nlohmann::json> rows;
  LineReader lines(open_bytes(fixture(name)));
  for (std::string_view line; lines.next(line);) {
    rows.push_back(nlohmann::json::parse(line));
  }
  return rows;
}

/// A tokenizer of few tokens that has every supported feature; tests change it.
inline nlohmann::json tiny_tokenizer() {
  return nlohmann::json::parse(R"({
    "version": "1.0",
    "added_tokens": [{"id": 7, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
                      "normalized": false, "special": true}],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "Ġ": 3, "ab": 4, "Ġab": 5, "abc": 6},
              "merges": ["a b", "Ġ ab", "ab c"]}
  })");
}

inline std::unique_ptr<Tokenizer> load_json(const TemporaryFolder& folder, const nlohmann::json& tokenizer) {
  return load_tokenizer(write_file(folder / "tokenizer.json", tokenizer.dump()).string());
}

}  // namespace lehr::data
