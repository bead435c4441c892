#include "lehr/base/random.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lehr {

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0],
        static_cast<uint32_t>(b),
        static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1],
        static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

uint64_t hash_name(std::string_view name) {
  NameHash hash;
  hash.add(name);
  return hash.value();
}

void NameHash::add(std::string_view part) {
  for (const char c : part) {
    hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  }
}

uint64_t NameHash::value() const {
  uint64_t hash = hash_;
  hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9;
  hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EB;
  return hash ^ (hash >> 31);
}

RandomStream::RandomStream(uint64_t seed, std::string_view name)
    : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}, stream_(hash_name(name)) {}

std::array<uint32_t, 4> RandomStream::block(uint64_t index) const {
  return philox(
      {static_cast<uint32_t>(index),
       static_cast<uint32_t>(index >> 32),
       static_cast<uint32_t>(stream_),
       static_cast<uint32_t>(stream_ >> 32)},
      key_);
}

uint64_t RandomStream::bits(uint64_t index) const {
  const auto words = block(index / 2);
  const size_t at = 2 * (index % 2);
  return (uint64_t{words[at + 1]} << 32) | words[at];
}

double RandomStream::uniform(uint64_t index) const {
  return block(index / 4)[index % 4] * 0x1p-32;
}

std::array<double, 4> RandomStream::normal_block(uint64_t index) const {
  const auto words = block(index);
  std::array<double, 4> values{};
  for (size_t pair = 0; pair < 4; pair += 2) {
    // Adding 0.5 keeps the logarithm finite.
    const double radius = std::sqrt(-2.0 * std::log((words[pair] + 0.5) * 0x1p-32));
    const double angle = 2.0 * std::numbers::pi * (words[pair + 1] * 0x1p-32);
    values[pair] = radius * std::cos(angle);
    values[pair + 1] = radius * std::sin(angle);
  }
  return values;
}

double RandomStream::normal(uint64_t index) const {
  return normal_block(index / 4)[index % 4];
}

void RandomStream::fill_uniform(uint64_t first, int64_t count, double* out) const {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = uniform(first + static_cast<uint64_t>(i));
  }
}

void RandomStream::fill_normal(uint64_t first, int64_t count, double* out) const {
  for (int64_t i = 0; i < count;) {
    const uint64_t index = first + static_cast<uint64_t>(i);
    const auto values = normal_block(index / 4);
    for (size_t lane = index % 4; lane < 4 && i < count; ++lane, ++i) {
      out[i] = values[lane];
    }
  }
}

}  // namespace lehr
