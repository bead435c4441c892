// tokenizer.json. An accepted one encodes and decodes, with ids in its range.
#include <vector>

#include "lehr/data/tokenizer.h"
#include "test/fuzz/harness.h"
#include "test/fuzz/json_mutator.h"

void lehr::fuzz::read_input(std::string_view input) {
  const auto path = as_file("tokenizer.json", input);
  std::unique_ptr<data::Tokenizer> tokenizer;
  if (!accepts([&] { tokenizer = data::load_tokenizer(path.string()); })) {
    return;
  }
  for (const std::string_view text : {"ab abc  <end> 12\n\xC3\xA9\xFF ab", "", "aaaaaaaaaaaaaaaa"}) {
    accepts([&] {  // a pattern may take too many steps
      const std::vector<int32_t> ids = tokenizer->encode(text);
      for (const int32_t id : ids) {
        if (id < 0 || id >= tokenizer->vocab_size()) {
          broken("an id out of the vocabulary");
        }
      }
      const size_t cut = text.size() / 2;
      tokenizer->encode_parts(text, {&cut, 1});
      tokenizer->encode_word(text);
      tokenizer->special_tokens().around(ids);
      tokenizer->decode(ids);
      tokenizer->decode(ids, /*skip_special=*/true);
    });
  }
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  return lehr::fuzz::mutate_json(data, size, most, seed);
}
