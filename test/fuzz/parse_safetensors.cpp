// A safetensors file. An accepted one must fill its data, and every byte of every tensor must be readable.
#include <algorithm>
#include <cstring>
#include <vector>

#include "lehr/state/safetensors.h"
#include "test/fuzz/harness.h"
#include "test/fuzz/json_mutator.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

void lehr::fuzz::read_input(std::string_view input) {
  const auto path = as_file("model.safetensors", input);
  accepts([&] {
    const state::SafetensorsFile file(path);
    int64_t end = 0;
    for (const state::TensorInfo& info : file.tensors()) {
      if (info.begin != end || state::num_bytes(info.dtype, info.shape, info.name) != info.num_bytes()) {
        broken("accepted, but the bytes of " + info.name + " do not follow those before it");
      }
      end = info.end;
      if (state::scalar_type(info.dtype)) {
        const at::Tensor tensor = file.tensor(info.name);
        volatile char sum = 0;
        const auto* bytes = static_cast<const char*>(tensor.const_data_ptr());
        for (size_t i = 0; i < tensor.nbytes(); ++i) {
          sum = static_cast<char>(sum + bytes[i]);
        }
      }
    }
    uint64_t header = 0;
    std::memcpy(&header, input.data(), sizeof header);
    if (sizeof header + header + static_cast<uint64_t>(end) != input.size()) {
      broken("accepted, but the tensors do not fill the file");
    }
    // The reader of this project's writer and of others must see the same.
    const std::string again = state::format_safetensors_header({file.tensors(), file.metadata()});
    const auto parsed = state::parse_safetensors_header(std::string_view(again).substr(8), end, "again");
    if (parsed.tensors.size() != file.tensors().size() || parsed.metadata != file.metadata()) {
      broken("a header that was read and written is another one");
    }
  });
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  uint64_t header = 0;
  if (size < sizeof header || seed % 8 == 0) {
    return LLVMFuzzerMutate(data, size, most);
  }
  // Header and data apart, and then the length that fits.
  std::memcpy(&header, data, sizeof header);
  header = std::min<uint64_t>(header, size - sizeof header);
  const std::vector<uint8_t> rest(data + sizeof header + header, data + size);
  const size_t room = most - sizeof header - std::min(rest.size(), most - sizeof header);
  if (room < header) {
    return LLVMFuzzerMutate(data, size, most);
  }
  const size_t changed = lehr::fuzz::mutate_json(data + sizeof header, header, room, seed);
  const uint64_t length = changed;
  std::memcpy(data, &length, sizeof length);
  std::copy(rest.begin(), rest.end(), data + sizeof header + changed);  // memcpy takes no null, not even for no bytes
  return sizeof header + changed + rest.size();
}
