// CRC-32C (Castagnoli), the checksum of iSCSI and ext4, in a form that adds up: what each rank knows of its own byte
// ranges gives the checksum of the whole file.
//
// Without its usual inversions a CRC is linear: that of a file is the exclusive or of those of its ranges, each
// followed by as many zeros as there are bytes behind it. So ranks that wrote, or read, parts of a file need to share
// four bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lehr {

/// The linear CRC of what `state` stands for, followed by `bytes`.
uint32_t crc32c_linear(std::span<const std::byte> bytes, uint32_t state = 0);

/// Zeros behind a range, as a factor: making it takes some microseconds at most, applying it less than a tenth of one.
class Crc32cZeros {
 public:
  explicit Crc32cZeros(int64_t count);
  /// The linear CRC of what `state` stands for, followed by the zeros.
  uint32_t behind(uint32_t state) const;

 private:
  uint32_t factor_;
};

/// The CRC-32C as all other programs have it, of `num_bytes` bytes whose linear CRC is `linear`.
uint32_t crc32c_from_linear(uint32_t linear, int64_t num_bytes);

/// The CRC-32C of these bytes.
uint32_t crc32c(std::span<const std::byte> bytes);

}  // namespace lehr
