// CRC-32C: its published values, and how the checksums of parts combine to that of the whole.
#include "lehr/base/crc32c.h"

#include <gmock/gmock.h>

#include <string_view>
#include <vector>

namespace lehr {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::vector<std::byte> numbers(size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>(i * i * 31 + i / 7);
  }
  return bytes;
}

// RFC 3720, appendix B.4, and the check value of the catalogue of CRCs.
TEST(Crc32c, HasThePublishedValues) {
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xe3069283U);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32)), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0xff})), 0x62a8ab43U);
  EXPECT_EQ(crc32c({}), 0U);
}

TEST(Crc32c, LongBuffersEqualTheBytewiseDefinition) {
  const auto bytes = numbers(100'003);
  uint32_t state = 0;
  for (const std::byte& byte : bytes) {
    state = crc32c_linear(std::span(&byte, 1), state);
  }
  EXPECT_EQ(crc32c_linear(bytes), state);
  EXPECT_EQ(crc32c_from_linear(state, static_cast<int64_t>(bytes.size())), crc32c(bytes));
}

TEST(Crc32c, PartsFollowedByZerosAddUpToTheWhole) {
  const auto bytes = numbers(20'000);
  uint32_t sum = 0;
  size_t begin = 0;
  for (const size_t end : {size_t{1}, size_t{700}, size_t{13'001}, size_t{20'000}}) {
    const auto behind = static_cast<int64_t>(bytes.size() - end);
    sum ^= Crc32cZeros(behind).behind(crc32c_linear(std::span(bytes).subspan(begin, end - begin)));
    begin = end;
  }
  EXPECT_EQ(crc32c_from_linear(sum, 20'000), crc32c(bytes));
}

TEST(Crc32c, AppendsAnyNumberOfZeros) {
  const std::vector<std::byte> zeros(5000);
  EXPECT_EQ(Crc32cZeros(5000).behind(0x12345678), crc32c_linear(zeros, 0x12345678));
  // More zeros than memory holds, in two parts.
  constexpr int64_t kMany = int64_t{3} << 41;
  EXPECT_EQ(Crc32cZeros(2 * kMany).behind(77), Crc32cZeros(kMany).behind(Crc32cZeros(kMany).behind(77)));
}

}  // namespace
}  // namespace lehr
