// Encoding of TensorBoard's event files: TFRecord frames with masked CRC-32C, and protocol-buffer fields.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lehr::metric {

/// Returns the CRC-32C in the masked form in which TFRecord stores it, which stays sound for checksums of checksums.
uint32_t masked_crc32c(std::string_view bytes);

/// Returns one TFRecord: length (8 bytes, little-endian), its checksum, the data, its checksum.
std::string tf_record(std::string_view data);

/// Builds one protocol-buffer message field by field.
class ProtoMessage {
 public:
  ProtoMessage& varint(int field, uint64_t value);
  ProtoMessage& fixed32(int field, float value);
  ProtoMessage& fixed64(int field, double value);
  /// Adds a string, bytes, or another message.
  ProtoMessage& bytes(int field, std::string_view value);
  const std::string& encoded() const { return encoded_; }

 private:
  void tag(int field, int wire_type);
  void raw_varint(uint64_t value);

  std::string encoded_;
};

}  // namespace lehr::metric
