// TOML: configs.
#include "lehr/config/toml.h"
#include "test/fuzz/harness.h"

void lehr::fuzz::read_input(std::string_view input) {
  accepts([&] { parse_toml(input, "config.toml"); });
}
