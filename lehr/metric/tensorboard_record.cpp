// Encodes protocol buffers and TFRecords, bytes in little-endian order on any machine.
#include "lehr/metric/tensorboard_record.h"

#include <bit>
#include <span>

#include "lehr/base/crc32c.h"

namespace lehr::metric {
namespace {

template <class Unsigned>
std::string little_endian(Unsigned value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(Unsigned); ++i) {
    bytes.push_back(static_cast<char>((value >> (8 * i)) & 0xFFU));
  }
  return bytes;
}

enum WireType { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

}  // namespace

uint32_t masked_crc32c(std::string_view bytes) {
  constexpr uint32_t kMaskDelta = 0xA282EAD8U;
  return std::rotr(crc32c(std::as_bytes(std::span(bytes))), 15) + kMaskDelta;
}

std::string tf_record(std::string_view data) {
  const std::string length = little_endian(static_cast<uint64_t>(data.size()));
  std::string record = length + little_endian(masked_crc32c(length));
  record.append(data);
  return record + little_endian(masked_crc32c(data));
}

void ProtoMessage::raw_varint(uint64_t value) {
  while (value >= 0x80U) {
    encoded_.push_back(static_cast<char>((value & 0x7FU) | 0x80U));
    value >>= 7U;
  }
  encoded_.push_back(static_cast<char>(value));
}

void ProtoMessage::tag(int field, int wire_type) {
  raw_varint((static_cast<uint64_t>(field) << 3U) | static_cast<uint64_t>(wire_type));
}

ProtoMessage& ProtoMessage::varint(int field, uint64_t value) {
  tag(field, kVarint);
  raw_varint(value);
  return *this;
}

ProtoMessage& ProtoMessage::fixed32(int field, float value) {
  tag(field, kFixed32);
  encoded_ += little_endian(std::bit_cast<uint32_t>(value));
  return *this;
}

ProtoMessage& ProtoMessage::fixed64(int field, double value) {
  tag(field, kFixed64);
  encoded_ += little_endian(std::bit_cast<uint64_t>(value));
  return *this;
}

ProtoMessage& ProtoMessage::bytes(int field, std::string_view value) {
  tag(field, kLengthDelimited);
  raw_varint(value.size());
  encoded_.append(value);
  return *this;
}

}  // namespace lehr::metric
