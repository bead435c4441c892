// adapter_config.json with its patterns, matched against names of modules.
#include "lehr/peft/adapter_config.h"
#include "test/fuzz/harness.h"
#include "test/fuzz/json_mutator.h"

void lehr::fuzz::read_input(std::string_view input) {
  as_file("adapter_config.json", input);
  accepts([&] {
    const peft::AdapterInfo info = peft::read_adapter_config(folder());
    for (const char* module : {"model.layers.0.self_attn.q_proj", "model.layers.11.mlp.experts.7.down_proj", ""}) {
      accepts([&] { peft::settings_for(info, module); });
    }
  });
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  return lehr::fuzz::mutate_json(data, size, most, seed);
}
