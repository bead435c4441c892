#include "lehr/state/quantized.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

#include "lehr/base/error.h"
#include "lehr/base/parallel.h"

namespace lehr::state {

namespace {
constexpr std::string_view kBlocks = "_blocks", kScales = "_scales", kScaleInv = "_scale_inv";
constexpr std::string_view kWeightScaleInv = ".weight_scale_inv";
constexpr int64_t kBlockBytes = 16, kBlockValues = 32;
constexpr int64_t kFloat8Block = 128;
constexpr const char* kQuantizedAdvice = "download the checkpoint again, or convert it to bfloat16";

std::string describe(const TensorInfo& info) {
  return fmt::format("{} [{}]", dtype_name(info.dtype), fmt::join(info.shape, ", "));
}

template <class... Args>
void expect(
    bool condition,
    const SafetensorsFile& file,
    const TensorInfo& found,
    fmt::format_string<Args...> format,
    Args&&... args) {
  if (!condition) {
    fail(
        "{}: {}: expected {}, found {}; {}",
        file.path().string(),
        found.name,
        fmt::format(format, std::forward<Args>(args)...),
        describe(found),
        kQuantizedAdvice);
  }
}

TensorInfo plain(std::string name, std::vector<int64_t> shape) {
  const int64_t bytes = num_bytes(DType::kBF16, shape, name);
  return {.name = std::move(name), .dtype = DType::kBF16, .shape = std::move(shape), .begin = 0, .end = bytes};
}

const SafetensorsFile& companion(
    const SafetensorsFile& file, const std::string& name, const std::string& other, const FileOf& file_of) {
  const SafetensorsFile* found = file_of(other);
  require(
      found != nullptr,
      "{}: {}: there is no {}, without which it cannot be read; {}",
      file.path().string(),
      name,
      other,
      kQuantizedAdvice);
  return *found;
}

QuantizedTensor mxfp4(const std::string& stem, const FileOf& file_of) {
  const std::string values = stem + std::string(kBlocks), scales = stem + std::string(kScales);
  const SafetensorsFile& file = *file_of(values);
  const SafetensorsFile& scale_file = companion(file, values, scales, file_of);
  const TensorInfo &blocks = file.info(values), &exponents = scale_file.info(scales);
  expect(
      blocks.shape.size() == 4 && blocks.shape[3] == kBlockBytes,
      file,
      blocks,
      "U8 [experts, rows, blocks, {}] (MXFP4)",
      kBlockBytes);
  const std::vector<int64_t> groups(blocks.shape.begin(), blocks.shape.end() - 1);
  expect(
      exponents.dtype == DType::kU8 && exponents.shape == groups,
      scale_file,
      exponents,
      "U8 [{}], one scale per block of {}",
      fmt::join(groups, ", "),
      values);
  require(
      file_of(stem) == nullptr,
      "{}: {}: both it and {} are there; remove one of them",
      file.path().string(),
      values,
      stem);
  return {
      .quantization = Quantization::mxfp4,
      .info = plain(stem, {groups[0], groups[2] * kBlockValues, groups[1]}),
      .values = values,
      .scales = scales};
}

QuantizedTensor float8_blocks(const std::string& scales, const FileOf& file_of) {
  const std::string name = scales.substr(0, scales.size() - kScaleInv.size());
  const SafetensorsFile& scale_file = *file_of(scales);
  const SafetensorsFile& file = companion(scale_file, scales, name, file_of);
  const TensorInfo &values = file.info(name), &found = scale_file.info(scales);
  expect(
      values.dtype == DType::kF8E4M3 && values.shape.size() == 2,
      file,
      values,
      "a matrix of F8_E4M3, because there is {}",
      scales);
  const auto blocks = [](int64_t size) { return size / kFloat8Block + (size % kFloat8Block != 0 ? 1 : 0); };
  const std::vector<int64_t> wanted{blocks(values.shape[0]), blocks(values.shape[1])};
  const bool is_scale = found.dtype == DType::kF32 || found.dtype == DType::kBF16 || found.dtype == DType::kF16;
  expect(
      is_scale && found.shape == wanted,
      scale_file,
      found,
      "F32, BF16 or F16 [{}], one scale per block of {} x {} elements of {}",
      fmt::join(wanted, ", "),
      kFloat8Block,
      kFloat8Block,
      name);
  return {
      .quantization = Quantization::float8_blocks, .info = plain(name, values.shape), .values = name, .scales = scales};
}

// The numbers of e2m1: sign, two bits of exponent, one of mantissa.
constexpr std::array<float, 16> kE2M1 = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0F, -0.5, -1, -1.5, -2, -3, -4, -6};

// The value of each nibble under each scale.
template <class T>
const std::array<std::array<T, 16>, 256>& mxfp4_values() {
  static const auto values = [] {
    std::array<std::array<T, 16>, 256> table{};
    for (size_t scale = 0; scale < table.size(); ++scale) {
      for (size_t nibble = 0; nibble < kE2M1.size(); ++nibble) {
        const float value = scale == 255 ? std::numeric_limits<float>::quiet_NaN()
                                         : std::ldexp(kE2M1[nibble], static_cast<int>(scale) - 127);
        table[scale][nibble] = static_cast<T>(value);
      }
    }
    return table;
  }();
  return values;
}

// Writes values `columns` of one row, whose blocks and scales begin at the pointers.
template <class T>
void decode_row(const uint8_t* blocks, const uint8_t* scales, Range columns, T* out) {
  const auto& values = mxfp4_values<T>();
  for (int64_t column = columns.begin; column < columns.end;) {
    const int64_t group = column / kBlockValues, end = std::min((group + 1) * kBlockValues, columns.end);
    const std::array<T, 16>& of_scale = values[scales[group]];
    for (; column < end; ++column) {
      const uint8_t byte = blocks[column / 2];
      *out++ = of_scale[column % 2 == 0 ? byte & 0xF : byte >> 4];
    }
  }
}

// (e, in, out) of the box, in memory (e, out, in).
template <class T>
at::Tensor read_mxfp4(const QuantizedTensor& tensor, const Box& box, at::ScalarType type, const FileOf& file_of) {
  const auto &experts = box[0], &columns = box[1], &rows = box[2];
  const at::Tensor blocks = file_of(tensor.values)->rows(tensor.values, experts.begin, experts.end);  // (e, out, G, 16)
  const at::Tensor scales = file_of(tensor.scales)->rows(tensor.scales, experts.begin, experts.end);  // (e, out, G)
  at::Tensor result = at::empty({experts.size(), rows.size(), columns.size()}, type);
  if (result.numel() == 0) {
    return result.transpose(1, 2);
  }
  const int64_t groups = scales.size(2), all_rows = scales.size(1);
  const auto *bytes = blocks.const_data_ptr<uint8_t>(), *exponents = scales.const_data_ptr<uint8_t>();
  T* out = result.mutable_data_ptr<T>();
  parallel_for(0, experts.size() * rows.size(), 64, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t row = i / rows.size() * all_rows + rows.begin + i % rows.size();
      decode_row(bytes + row * groups * kBlockBytes, exponents + row * groups, columns, out + i * columns.size());
    }
  });
  return result.transpose(1, 2);
}

at::Tensor read_float8(const QuantizedTensor& tensor, const Box& box, at::ScalarType type, const FileOf& file_of) {
  const auto &rows = box[0], &columns = box[1];
  at::Tensor result = at::empty({rows.size(), columns.size()}, type);
  const SafetensorsFile &file = *file_of(tensor.values), &scale_file = *file_of(tensor.scales);
  const Range blocks{columns.begin / kFloat8Block, (columns.end + kFloat8Block - 1) / kFloat8Block};
  for (int64_t row = rows.begin; row < rows.end && columns.size() > 0;) {
    const int64_t block = row / kFloat8Block, end = std::min((block + 1) * kFloat8Block, rows.end);
    const at::Tensor scales = scale_file.rows(tensor.scales, block, block + 1)
                                  .to(at::kFloat)
                                  .narrow(1, blocks.begin, blocks.size())
                                  .repeat_interleave(kFloat8Block, /*dim=*/1)
                                  .narrow(1, columns.begin - blocks.begin * kFloat8Block, columns.size());  // (1, c)
    const at::Tensor values = file.rows(tensor.values, row, end).narrow(1, columns.begin, columns.size());
    result.narrow(0, row - rows.begin, end - row).copy_(values.to(at::kFloat) * scales);
    row = end;
  }
  return result;
}
}  // namespace

const char* name_of(Quantization quantization) {
  return quantization == Quantization::mxfp4 ? "MXFP4" : "F8_E4M3 with scales of blocks";
}

std::vector<QuantizedTensor> find_quantized(const std::vector<std::string>& names, const FileOf& file_of) {
  std::vector<QuantizedTensor> found;
  for (const std::string& name : names) {
    if (name.ends_with(kBlocks) && file_of(name)->info(name).dtype == DType::kU8) {
      found.push_back(mxfp4(name.substr(0, name.size() - kBlocks.size()), file_of));
    } else if (name.ends_with(kWeightScaleInv)) {
      found.push_back(float8_blocks(name, file_of));
    }
  }
  return found;
}

at::Tensor read_quantized(const QuantizedTensor& tensor, const Box& box, at::ScalarType type, const FileOf& file_of) {
  const at::NoGradGuard no_grad;
  if (tensor.quantization == Quantization::float8_blocks) {
    return read_float8(tensor, box, type, file_of);
  }
  return type == at::kBFloat16 ? read_mxfp4<at::BFloat16>(tensor, box, type, file_of)
                               : read_mxfp4<float>(tensor, box, at::kFloat, file_of).to(type);
}

}  // namespace lehr::state
