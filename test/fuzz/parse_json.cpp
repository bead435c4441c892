// JSON as value trees: config.json and most other files. What is written is read back as the same.
#include "lehr/config/json.h"
#include "test/fuzz/harness.h"
#include "test/fuzz/json_mutator.h"

void lehr::fuzz::read_input(std::string_view input) {
  Node node;
  if (!accepts([&] { node = parse_json(input, "config.json"); })) {
    return;
  }
  std::string text;
  if (!accepts([&] { text = to_json(node); })) {
    return;  // a number that is not finite
  }
  std::string again;
  if (!accepts([&] { again = to_json(parse_json(text, "again.json")); }) || again != text) {
    broken("read, written and read again, the JSON differs: " + text);
  }
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  return lehr::fuzz::mutate_json(data, size, most, seed);
}
