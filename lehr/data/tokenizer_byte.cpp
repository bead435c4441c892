// The byte tokenizer: for tests, and for training without a tokenizer file.
#include "lehr/data/tokenizer.h"
#include "lehr/data/tokenizer_kinds.h"
#include "lehr/data/unicode.h"

namespace lehr::data {
namespace {

class ByteTokenizer : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids(text.size());
    for (size_t i = 0; i < text.size(); ++i) {
      ids[i] = static_cast<uint8_t>(text[i]);
    }
    return ids;
  }

  std::string decode(std::span<const int32_t> ids, bool /*skip_special*/) const override {
    std::string bytes;
    bytes.reserve(ids.size());
    for (int32_t id : ids) {
      if (id >= 0 && id < 256) {
        bytes += static_cast<char>(id);
      }
    }
    return replace_invalid_utf8(std::move(bytes));
  }

  int64_t vocab_size() const override { return 257; }
  std::optional<int32_t> eos_id() const override { return 256; }
  std::optional<int32_t> bos_id() const override { return std::nullopt; }
  std::optional<int32_t> pad_id() const override { return std::nullopt; }
  std::vector<std::filesystem::path> files() const override { return {}; }
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() {
  return std::make_unique<ByteTokenizer>();
}

}  // namespace lehr::data
