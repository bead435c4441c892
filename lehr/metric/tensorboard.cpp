// Encodes TensorBoard's Event and Summary messages. Field numbers are from tensorflow/core/util/event.proto and
// tensorflow/core/framework/{summary,tensor}.proto.
#include "lehr/metric/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "lehr/base/error.h"
#include "lehr/metric/append.h"
#include "lehr/metric/tensorboard_record.h"

namespace lehr::metric {
namespace {

// Event
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
// SessionLog
constexpr int kStatus = 1;
constexpr uint64_t kStart = 1;
// Summary and Summary.Value
constexpr int kValue = 1, kTag = 1, kSimpleValue = 2, kImage = 4, kTensor = 8, kMetadata = 9;
// Summary.Image
constexpr int kHeight = 1, kWidth = 2, kColorspace = 3, kEncodedImage = 4;
// TensorProto, SummaryMetadata and SummaryMetadata.PluginData
constexpr int kDtype = 1, kTensorShape = 2, kStringValue = 8, kPluginData = 1, kPluginName = 1;
constexpr uint64_t kDtString = 7;

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

ProtoMessage event(int64_t step) {
  ProtoMessage message;
  message.fixed64(kWallTime, wall_time());
  message.varint(kStep, static_cast<uint64_t>(step));
  return message;
}

std::string value_message(const ProtoMessage& value) {
  return ProtoMessage().bytes(kValue, value.encoded()).encoded();
}

// The fields of a PNG's IHDR chunk that TensorBoard stores with the image.
struct PngHeader {
  uint32_t width = 0;
  uint32_t height = 0;
  uint32_t channels = 0;
};

PngHeader read_png_header(std::string_view png, std::string_view tag) {
  constexpr std::string_view kSignature("\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 16);
  constexpr size_t kHeaderEnd = 29;
  require(
      png.size() >= kHeaderEnd && png.substr(0, kSignature.size()) == kSignature,
      "{}: expected the bytes of a PNG file, found {} other bytes",
      tag,
      png.size());
  const auto big_endian = [&](size_t at) {
    uint32_t value = 0;
    for (size_t i = at; i < at + 4; ++i) {
      value = (value << 8U) | static_cast<uint8_t>(png[i]);
    }
    return value;
  };
  constexpr std::array<uint32_t, 7> kChannels = {1, 0, 3, 3, 2, 0, 4};  // by PNG colour type; a palette (3) is RGB
  const auto color_type = static_cast<uint8_t>(png[25]);
  const uint32_t channels = color_type < kChannels.size() ? kChannels[color_type] : 0;
  require(channels != 0, "{}: the PNG file has the unknown colour type {}", tag, color_type);
  return {.width = big_endian(16), .height = big_endian(20), .channels = channels};
}

std::filesystem::path file_name() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format("events.out.tfevents.{:010d}.{}.{}.", static_cast<int64_t>(wall_time()), host.data(), ::getpid());
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder, std::optional<int64_t> purge_from_step) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    fail_runtime("{}: the folder cannot be created: {}", folder.string(), error.message());
  }
  // A second writer in the same second and process gets the next number.
  for (int number = 0; file_ < 0; ++number) {
    path_ = folder / file_name();
    path_ += std::to_string(number);
    file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (file_ < 0 && errno != EEXIST) {
      fail_runtime("{}: cannot be opened for writing: {}", path_.string(), std::strerror(errno));
    }
  }
  write_record(ProtoMessage().fixed64(kWallTime, wall_time()).bytes(kFileVersion, "brain.Event:2").encoded());
  if (purge_from_step) {
    const std::string start = ProtoMessage().varint(kStatus, kStart).encoded();
    write_record(event(*purge_from_step).bytes(kSessionLog, start).encoded());
  }
}

TensorBoardWriter::~TensorBoardWriter() {
  if (file_ >= 0) {
    ::close(file_);
  }
}

void TensorBoardWriter::scalar(int64_t step, std::string_view tag, double value) {
  scalars(step, {{std::string(tag), value}});
}

void TensorBoardWriter::scalars(int64_t step, const std::vector<std::pair<std::string, double>>& values) {
  std::string summary;
  for (const auto& [tag, number] : values) {
    summary += value_message(ProtoMessage().bytes(kTag, tag).fixed32(kSimpleValue, static_cast<float>(number)));
  }
  write_summary(step, summary);
}

void TensorBoardWriter::text(int64_t step, std::string_view tag, std::string_view markdown) {
  const std::string plugin = ProtoMessage().bytes(kPluginName, "text").encoded();
  const std::string metadata = ProtoMessage().bytes(kPluginData, plugin).encoded();
  const std::string tensor =
      ProtoMessage().varint(kDtype, kDtString).bytes(kTensorShape, "").bytes(kStringValue, markdown).encoded();
  write_summary(step, value_message(ProtoMessage().bytes(kTag, tag).bytes(kTensor, tensor).bytes(kMetadata, metadata)));
}

void TensorBoardWriter::image(int64_t step, std::string_view tag, std::string_view png) {
  const PngHeader header = read_png_header(png, tag);
  const std::string image = ProtoMessage()
                                .varint(kHeight, header.height)
                                .varint(kWidth, header.width)
                                .varint(kColorspace, header.channels)
                                .bytes(kEncodedImage, png)
                                .encoded();
  write_summary(step, value_message(ProtoMessage().bytes(kTag, tag).bytes(kImage, image)));
}

void TensorBoardWriter::write_summary(int64_t step, const std::string& summary) {
  write_record(event(step).bytes(kSummary, summary).encoded());
}

void TensorBoardWriter::write_record(const std::string& encoded) {
  const std::string record = tf_record(encoded);
  if (const auto problem = append_whole(file_, record)) {
    problem_ = fmt::format("{}: cannot be written: {}; such steps are skipped", path_.string(), *problem);
  }
}

}  // namespace lehr::metric
