// Corpora: text, JSON lines, gzip and Zstandard; the first byte chooses.
#include "lehr/data/corpus.h"
#include "test/fuzz/harness.h"

void lehr::fuzz::read_input(std::string_view input) {
  if (input.empty()) {
    return;
  }
  static constexpr const char* kNames[] = {"a.txt", "a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.txt.zst", "a.txt.gz"};
  static constexpr const char* kSplits[] = {"", "line", "blank_line", "<|end|>"};
  const auto choice = static_cast<uint8_t>(input[0]);
  const auto path = as_file(kNames[choice % 6], input.substr(1));
  accepts([&] {
    data::CorpusReader reader({{.path = path, .split_documents = kSplits[choice / 6 % 4]}});
    while (reader.next()) {
    }
  });
}
