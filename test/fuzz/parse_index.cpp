// model.safetensors.index.json beside two shards: it must not lead out of the folder.
#include <cstring>

#include "lehr/state/weights.h"
#include "test/fuzz/harness.h"
#include "test/fuzz/json_mutator.h"

namespace {
std::string shard(const std::string& tensor) {
  const std::string json = "{\"" + tensor + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  const uint64_t length = json.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + json + "x";
}
}  // namespace

void lehr::fuzz::read_input(std::string_view input) {
  static const bool made = [] {
    as_file("a.safetensors", shard("a"));
    as_file("b.safetensors", shard("b"));
    std::filesystem::create_symlink("/etc", folder() / "etc");
    return true;
  }();
  static_cast<void>(made);
  const auto path = as_file("model.safetensors.index.json", input);
  accepts([&] {
    const state::WeightReader reader(folder());
    for (const state::SafetensorsFile& file : reader.files()) {
      if (std::filesystem::canonical(file.path()).parent_path() != std::filesystem::canonical(folder())) {
        broken("a shard out of the folder was opened: " + file.path().string());
      }
    }
  });
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  return lehr::fuzz::mutate_json(data, size, most, seed);
}
