// CRC-32C (Castagnoli), the checksum of iSCSI and ext4, in a combinable form: the ranks' checksums of their own byte
// ranges combine to the checksum of the whole file.
//
// Without its usual inversions a CRC is linear: the CRC of a file is the XOR of the CRCs of its ranges, each extended
// by one zero per byte after the range. So ranks that write, or read, parts of a file exchange only four bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lehr {

/// Returns the linear CRC of the data with linear CRC `state`, followed by `bytes`.
uint32_t crc32c_linear(std::span<const std::byte> bytes, uint32_t state = 0);

/// A run of zero bytes as a factor of the CRC. Construction takes some microseconds at most, application less than a
/// tenth of a microsecond.
class Crc32cZeros {
 public:
  explicit Crc32cZeros(int64_t count);
  /// Returns the linear CRC of the data with linear CRC `state`, followed by the zeros.
  uint32_t behind(uint32_t state) const;

 private:
  uint32_t factor_;
};

/// Converts the linear CRC of `num_bytes` bytes to the standard CRC-32C.
uint32_t crc32c_from_linear(uint32_t linear, int64_t num_bytes);

/// Returns the standard CRC-32C of these bytes.
uint32_t crc32c(std::span<const std::byte> bytes);

}  // namespace lehr
