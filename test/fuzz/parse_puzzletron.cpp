// Files of puzzletron: block configs, and replacements or solutions.
#include "lehr/config/json.h"
#include "lehr/descriptor/block_config.h"
#include "lehr/pretrained/replacements.h"
#include "test/fuzz/harness.h"
#include "test/fuzz/json_mutator.h"

void lehr::fuzz::read_input(std::string_view input) {
  accepts([&] {
    // A config.json of two layers.
    const descriptor::BlockConfig usual{
        .attention = descriptor::AttentionSubblock{.num_key_value_heads = 2},
        .ffn = descriptor::FFNSubblock{.intermediate_size = 64}};
    const descriptor::LayersByDefault layers{.blocks = {usual, usual}, .hidden_size = 32, .num_attention_heads = 4};
    const auto blocks = descriptor::read_block_configs(parse_json(input, "config.json"), layers);
    if (!blocks) {
      return;
    }
    Node again = Node::make_table();
    again.set("block_configs", descriptor::write_block_configs(*blocks));
    bool same = true;
    if (!accepts([&] { same = descriptor::read_block_configs(again, layers) == blocks; }) || !same) {
      broken("read, written and read again, the block configs differ");
    }
  });
  const auto path = as_file("solutions.json", input);
  accepts([&] { pretrained::read_replacements(path.string()); });
  accepts([&] { pretrained::read_replacements(path.string() + "#0"); });
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  return lehr::fuzz::mutate_json(data, size, most, seed);
}
