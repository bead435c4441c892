// The mapping between bytes and printable characters, and the hash table of tokens.
#include "lehr/data/bpe_vocabulary.h"

#include <algorithm>
#include <array>
#include <bit>

#include "lehr/data/unicode.h"

namespace lehr::data {
namespace {

/// GPT-2's mapping: printable Latin-1 bytes map to themselves, the others to U+0100 and following, in order.
struct ByteSpelling {
  std::array<uint16_t, 256> code_of{};
  std::array<int16_t, 0x144> byte_of{};
};

constexpr ByteSpelling kByteSpelling = [] {
  ByteSpelling map;
  map.byte_of.fill(-1);
  uint16_t next = 0x100;
  for (uint16_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    map.code_of[byte] = printable ? byte : next++;
    map.byte_of[map.code_of[byte]] = static_cast<int16_t>(byte);
  }
  return map;
}();

}  // namespace

bool Vocabulary::to_bytes(std::string_view spelling, std::string& bytes) const {
  if (spelling_ == Spelling::characters) {
    bytes = spelling;
    return true;
  }
  bytes.clear();
  const char* const end = spelling.data() + spelling.size();
  for (const char* at = spelling.data(); at < end;) {
    const DecodedChar c = decode_utf8(at, end);
    if (c.code >= kByteSpelling.byte_of.size() || kByteSpelling.byte_of[c.code] < 0) {
      bytes = spelling;
      return false;
    }
    bytes += static_cast<char>(kByteSpelling.byte_of[c.code]);
    at += c.size;
  }
  return true;
}

std::string Vocabulary::spell(uint8_t byte) const {
  if (spelling_ == Spelling::characters) {
    return {static_cast<char>(byte)};
  }
  std::string spelling;
  append_utf8(spelling, kByteSpelling.code_of[byte]);
  return spelling;
}

void Vocabulary::reserve(size_t tokens) {
  tokens_.reserve(tokens);
  arena_.reserve(tokens * 8);
  rehash(std::bit_ceil(std::max<size_t>(tokens, 8) * 3 / 2));
}

void Vocabulary::rehash(size_t capacity) {
  std::vector<Slot> old(capacity);
  old.swap(slots_);
  mask_ = capacity - 1;
  used_ = 0;
  for (const Slot& slot : old) {
    if (slot.id >= 0) {
      insert(bytes_of(slot.id), slot.id);
    }
  }
}

void Vocabulary::insert(std::string_view bytes, int32_t id) {
  if ((used_ + 1) * 3 > slots_.size() * 2) {
    rehash(std::max<size_t>(16, slots_.size() * 2));
  }
  size_t i = hash_bytes(bytes) & mask_;
  while (slots_[i].id >= 0) {
    i = (i + 1) & mask_;
  }
  slots_[i] = {head_of(bytes), static_cast<uint32_t>(bytes.size()), id};
  ++used_;
}

bool Vocabulary::store(std::string_view bytes, int64_t id) {
  const auto index = static_cast<size_t>(id);
  if (index >= tokens_.size()) {
    tokens_.resize(index + 1);
  }
  if (tokens_[index].taken) {
    return false;
  }
  tokens_[index] = {arena_.size(), static_cast<uint32_t>(bytes.size()), true};
  arena_ += bytes;
  return true;
}

bool Vocabulary::add(std::string_view spelling, int64_t id) {
  std::string bytes;
  if (!to_bytes(spelling, bytes)) {
    return add_apart(spelling, id);
  }
  if (find(bytes) >= 0 || !store(bytes, id)) {
    return false;
  }
  insert(bytes_of(id), static_cast<int32_t>(id));
  longest_ = std::max(longest_, bytes.size());
  return true;
}

bool Vocabulary::add_apart(std::string_view spelling, int64_t id) {
  std::string bytes;
  to_bytes(spelling, bytes);
  return store(bytes, id) && apart_.emplace(spelling, static_cast<int32_t>(id)).second;
}

int32_t Vocabulary::id_of_spelling(std::string_view spelling) const {
  std::string bytes;
  if (to_bytes(spelling, bytes)) {
    if (const int32_t id = find(bytes); id >= 0) {
      return id;
    }
  }
  const auto at = apart_.find(std::string(spelling));
  return at == apart_.end() ? -1 : at->second;
}

}  // namespace lehr::data
