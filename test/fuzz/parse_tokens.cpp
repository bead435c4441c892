// Token files: every document and every id of an accepted one can be read. The checksum of the header is made to fit.
#include <bit>
#include <cstring>

#include "lehr/data/token_file.h"
#include "test/fuzz/harness.h"

namespace {
constexpr size_t kHeader = 256;

// As in lehr/data/token_file.cpp: anybody can compute it.
void fix_checksum(std::string& bytes) {
  uint64_t hash = 0x9E3779B97F4A7C15;
  for (size_t at = 0; at + 8 < kHeader; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, 8);
    hash = (std::rotl(hash, 23) ^ word) * 0xBF58476D1CE4E5B9;
  }
  std::memcpy(bytes.data() + kHeader - 8, &hash, 8);
}
}  // namespace

void lehr::fuzz::read_input(std::string_view input) {
  std::string bytes(input);
  if (bytes.size() >= kHeader) {
    fix_checksum(bytes);
  }
  const auto path = as_file("a.tokens", bytes);
  accepts([&] { data::verify_token_file(path); });
  accepts([&] {
    const data::TokenStream stream = data::open_token_file(path);
    for (int64_t i = 0; i < stream.num_documents(); ++i) {
      for (const int64_t id : stream.ids(stream.document(i))) {
        if (id < 0 || id >= stream.vocab_size()) {
          broken("an id out of the vocabulary");
        }
      }
    }
    stream.ids({0, stream.num_tokens()});
    stream.slice({0, stream.num_tokens()});
  });
}
