#include "lehr/state/safetensors_header.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>

#include "lehr/base/error.h"
#include "lehr/state/strict_json.h"

namespace lehr::state {

namespace {
using Json = nlohmann::json;

constexpr size_t kMostDims = 64;  // as many as ATen has
constexpr const char* kHeaderAdvice = "the file is damaged or not a safetensors file: download or save it again";

int64_t size_of(const Json& value, const std::string& subject, const char* what) {
  require(
      value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX),
      "{}: {}: expected whole numbers from 0, found {}; {}",
      subject,
      what,
      value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 40),
      kHeaderAdvice);
  return static_cast<int64_t>(value.get<uint64_t>());
}

const Json& entry(const Json& object, const char* key, const std::string& subject) {
  const auto found = object.find(key);
  require(found != object.end(), "{}: expected an entry \"{}\", found none; {}", subject, key, kHeaderAdvice);
  return *found;
}

TensorInfo parse_tensor(const std::string& name, const Json& json, int64_t data_bytes, const std::string& file) {
  const std::string subject = fmt::format("{}: {}", file, name);
  require(json.is_object(), "{}: expected a JSON object, found {}; {}", subject, json.type_name(), kHeaderAdvice);
  require(json.size() == 3, "{}: expected dtype, shape and data_offsets, found {} entries", subject, json.size());
  TensorInfo info{.name = name, .shape = {}};

  const Json& dtype = entry(json, "dtype", subject);
  require(dtype.is_string(), "{}: dtype: expected a string, found {}; {}", subject, dtype.type_name(), kHeaderAdvice);
  const auto& dtype_text = dtype.get_ref<const std::string&>();
  const auto known = dtype_from_name(dtype_text);
  if (!known) {
    fail(
        "{}: dtype: \"{}\" is not a type of the format that this version knows; store the tensor in a type such as F32 "
        "or BF16",
        subject,
        dtype_text);
  }
  info.dtype = *known;

  const Json& shape = entry(json, "shape", subject);
  require(shape.is_array(), "{}: shape: expected a list, found {}; {}", subject, shape.type_name(), kHeaderAdvice);
  require(
      shape.size() <= kMostDims,
      "{}: shape: expected at most {} dimensions, found {}; {}",
      subject,
      kMostDims,
      shape.size(),
      kHeaderAdvice);
  for (const Json& size : shape) {
    info.shape.push_back(size_of(size, subject, "shape"));
  }

  const Json& offsets = entry(json, "data_offsets", subject);
  require(
      offsets.is_array() && offsets.size() == 2,
      "{}: data_offsets: expected a list of two; {}",
      subject,
      kHeaderAdvice);
  info.begin = size_of(offsets[0], subject, "data_offsets");
  info.end = size_of(offsets[1], subject, "data_offsets");
  require(
      info.begin <= info.end && info.end <= data_bytes,
      "{}: bytes {} to {} are outside the {} bytes of data in the file; if it is truncated, download it again",
      subject,
      info.begin,
      info.end,
      data_bytes);
  const int64_t expected = num_bytes(info.dtype, info.shape, subject);
  require(
      info.num_bytes() == expected,
      "{}: expected {} bytes for {} [{}], found {}; {}",
      subject,
      expected,
      dtype_text,
      fmt::join(info.shape, ", "),
      info.num_bytes(),
      kHeaderAdvice);
  return info;
}

// Checks that tensors have no overlap and no gap, and fill the data.
void check_layout(const std::vector<TensorInfo>& tensors, int64_t data_bytes, const std::string& file) {
  int64_t end = 0;
  const TensorInfo* before = nullptr;
  for (const TensorInfo& tensor : tensors) {
    require(
        tensor.begin >= end,
        "{}: {}: its bytes overlap those of {}; {}",
        file,
        tensor.name,
        before == nullptr ? "" : before->name,
        kHeaderAdvice);
    require(
        tensor.begin == end,
        "{}: {}: {} bytes before it belong to no tensor, which the format forbids; {}",
        file,
        tensor.name,
        tensor.begin - end,
        kHeaderAdvice);
    end = tensor.end;
    before = &tensor;
  }
  require(
      end == data_bytes,
      "{}: the tensors end at byte {} of {} bytes of data; {}",
      file,
      end,
      data_bytes,
      kHeaderAdvice);
}
}  // namespace

int64_t num_elements(const std::vector<int64_t>& shape, const std::string& subject) {
  // Zero sizes count as ones until the end: strides are computed that way, and must fit as well.
  int64_t product = 1;
  bool empty = false;
  for (const int64_t size : shape) {
    require(size >= 0, "{}: shape [{}]: expected sizes from 0", subject, fmt::join(shape, ", "));
    empty = empty || size == 0;
    require(
        !__builtin_mul_overflow(product, std::max<int64_t>(size, 1), &product),
        "{}: shape [{}]: the number of elements overflows",
        subject,
        fmt::join(shape, ", "));
  }
  return empty ? 0 : product;
}

int64_t num_bytes(DType dtype, const std::vector<int64_t>& shape, const std::string& subject) {
  int64_t bits = 0;
  require(
      !__builtin_mul_overflow(num_elements(shape, subject), dtype_bits(dtype), &bits),
      "{}: shape [{}]: the number of bytes overflows",
      subject,
      fmt::join(shape, ", "));
  require(
      bits % 8 == 0, "{}: {} [{}] is not a whole number of bytes", subject, dtype_name(dtype), fmt::join(shape, ", "));
  return bits / 8;
}

SafetensorsHeader parse_safetensors_header(std::string_view json, int64_t data_bytes, const std::string& file) {
  SafetensorsHeader header;
  for_each_json_entry(json, file + ": header", 3, kHeaderAdvice, [&](const std::string& name, const Json& value) {
    if (name == "__metadata__") {
      require(value.is_object(), "{}: __metadata__: expected a JSON object; {}", file, kHeaderAdvice);
      for (const auto& [key, text] : value.items()) {
        require(text.is_string(), "{}: __metadata__: {}: expected a string; {}", file, key, kHeaderAdvice);
        header.metadata[key] = text.get<std::string>();
      }
    } else {
      header.tensors.push_back(parse_tensor(name, value, data_bytes, file));
    }
  });
  // Empty tensors sort before the tensor that begins at the same byte.
  std::sort(header.tensors.begin(), header.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  check_layout(header.tensors, data_bytes, file);
  return header;
}

std::string format_safetensors_header(const SafetensorsHeader& header) {
  nlohmann::ordered_json root = nlohmann::ordered_json::object();
  auto& entries = root.get_ref<nlohmann::ordered_json::object_t&>();
  if (!header.metadata.empty()) {
    entries.emplace_back("__metadata__", header.metadata);
  }
  for (const TensorInfo& tensor : header.tensors) {
    nlohmann::ordered_json json;
    json["dtype"] = dtype_name(tensor.dtype);
    json["shape"] = tensor.shape;
    json["data_offsets"] = {tensor.begin, tensor.end};
    // Not root[name], which would search all earlier names.
    entries.emplace_back(tensor.name, std::move(json));
  }
  std::string text = root.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length(kHeaderLengthBytes, '\0');
  for (size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  }
  return length + text;
}

}  // namespace lehr::state
