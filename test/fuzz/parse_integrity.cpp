// integrity.json. An accepted one names files of the folder, and is written as it was read.
#include "lehr/state/integrity.h"
#include "test/fuzz/harness.h"
#include "test/fuzz/json_mutator.h"

void lehr::fuzz::read_input(std::string_view input) {
  accepts([&] {
    const state::Integrity files = state::parse_integrity(std::string(input), "integrity.json");
    for (const auto& [name, file] : files) {
      if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos || file.num_bytes < 0) {
        broken("accepted: " + name);
      }
    }
    bool same = true;
    if (!accepts([&] { same = state::parse_integrity(state::format_integrity(files), "again") == files; }) || !same) {
      broken("read, written and read again, it differs");
    }
  });
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  return lehr::fuzz::mutate_json(data, size, most, seed);
}
