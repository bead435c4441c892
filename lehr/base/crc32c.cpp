#include "lehr/base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace lehr {

namespace {
constexpr uint32_t kPolynomial = 0x82f63b78;  // bits reversed: the highest bit is x^0

// Multiplies two polynomials.
constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = uint32_t{1} << 31; bit != 0; bit >>= 1) {
    product ^= (a & bit) != 0 ? b : 0;
    b = (b & 1) != 0 ? (b >> 1) ^ kPolynomial : b >> 1;
  }
  return product;
}

// Element i is x^(8 * 2^i).
constexpr std::array<uint32_t, 63> make_powers() {
  std::array<uint32_t, 63> powers{};
  powers[0] = uint32_t{1} << 23;  // x^8
  for (size_t i = 1; i < powers.size(); ++i) {
    powers[i] = multiply(powers[i - 1], powers[i - 1]);
  }
  return powers;
}

constexpr uint32_t factor_of(int64_t zeros) {
  constexpr auto kPowers = make_powers();
  uint32_t factor = uint32_t{1} << 31;  // 1
  for (size_t i = 0; zeros != 0; ++i, zeros >>= 1) {
    factor = (zeros & 1) != 0 ? multiply(factor, kPowers[i]) : factor;
  }
  return factor;
}

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t value = 0; value < 256; ++value) {
    uint32_t crc = value;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc & 1) != 0 ? (crc >> 1) ^ kPolynomial : crc >> 1;
    }
    table[value] = crc;
  }
  return table;
}

uint32_t by_table(const std::byte* bytes, size_t size, uint32_t state) {
  static constexpr auto kTable = make_table();
  for (size_t i = 0; i < size; ++i) {
    state = (state >> 8) ^ kTable[(state ^ static_cast<uint32_t>(bytes[i])) & 0xff];
  }
  return state;
}

#if defined(__x86_64__)
uint64_t word(const std::byte* bytes) {
  uint64_t value = 0;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// The instruction has a latency of three cycles and a throughput of one per cycle, so three lanes run interleaved.
__attribute__((target("sse4.2"))) uint32_t by_instruction(const std::byte* bytes, size_t size, uint32_t state) {
  constexpr size_t kLane = 4096;
  static constexpr uint32_t kOneLane = factor_of(kLane);
  static constexpr uint32_t kTwoLanes = factor_of(2 * kLane);
  while (size >= 3 * kLane) {
    uint64_t a = state;
    uint64_t b = 0;
    uint64_t c = 0;
    for (size_t i = 0; i < kLane; i += 8) {
      a = _mm_crc32_u64(a, word(bytes + i));
      b = _mm_crc32_u64(b, word(bytes + kLane + i));
      c = _mm_crc32_u64(c, word(bytes + 2 * kLane + i));
    }
    state = multiply(kTwoLanes, static_cast<uint32_t>(a)) ^ multiply(kOneLane, static_cast<uint32_t>(b)) ^
            static_cast<uint32_t>(c);
    bytes += 3 * kLane;
    size -= 3 * kLane;
  }
  uint64_t rest = state;
  for (; size >= 8; bytes += 8, size -= 8) {
    rest = _mm_crc32_u64(rest, word(bytes));
  }
  state = static_cast<uint32_t>(rest);
  for (; size > 0; ++bytes, --size) {
    state = _mm_crc32_u8(state, static_cast<uint8_t>(*bytes));
  }
  return state;
}
#endif
}  // namespace

uint32_t crc32c_linear(std::span<const std::byte> bytes, uint32_t state) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) {
    return by_instruction(bytes.data(), bytes.size(), state);
  }
#endif
  return by_table(bytes.data(), bytes.size(), state);
}

Crc32cZeros::Crc32cZeros(int64_t count) : factor_(factor_of(count)) {}

uint32_t Crc32cZeros::behind(uint32_t state) const {
  return multiply(factor_, state);
}

uint32_t crc32c_from_linear(uint32_t linear, int64_t num_bytes) {
  return ~(linear ^ Crc32cZeros(num_bytes).behind(~uint32_t{0}));
}

uint32_t crc32c(std::span<const std::byte> bytes) {
  return ~crc32c_linear(bytes, ~uint32_t{0});
}

}  // namespace lehr
