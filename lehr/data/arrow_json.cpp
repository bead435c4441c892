// Values of Arrow arrays as JSON.
#include "lehr/data/arrow_json.h"

#include <arrow/extension_type.h>
#include <arrow/scalar.h>
#include <arrow/type_traits.h>

#include <array>
#include <charconv>
#include <cmath>
#include <stdexcept>
#include <type_traits>

namespace lehr::data {
namespace {

using arrow::Type;

constexpr std::string_view kJsonType = "arrow.json";  // strings of JSON; the feature Json of Hugging Face datasets

bool holds_text(Type::type id) {
  return arrow::is_base_binary_like(id) || arrow::is_binary_view_like(id);
}

bool is_json_text(const arrow::DataType& type) {
  if (type.id() != Type::EXTENSION) {
    return false;
  }
  const auto& extension = static_cast<const arrow::ExtensionType&>(type);
  return extension.extension_name() == kJsonType && holds_text(extension.storage_id());
}

/// Throws std::length_error unless `more` bytes fit.
void require_room(const JsonLines& out, size_t more) {
  if (more > out.most_bytes || out.text.size() > out.most_bytes - more || out.left_out > out.most_left_out) {
    throw std::length_error("the JSON is too long");
  }
}

/// Returns the bytes of a value of a type that holds_text().
std::string_view text_of(const arrow::Array& array, int64_t i) {
  switch (array.type_id()) {
    case Type::STRING:
    case Type::BINARY:
      return static_cast<const arrow::BinaryArray&>(array).GetView(i);
    case Type::LARGE_STRING:
    case Type::LARGE_BINARY:
      return static_cast<const arrow::LargeBinaryArray&>(array).GetView(i);
    default:
      return static_cast<const arrow::BinaryViewArray&>(array).GetView(i);
  }
}

template <class Array>
void append_number(const arrow::Array& array, int64_t i, JsonLines& out) {
  const auto value = static_cast<const Array&>(array).Value(i);
  if constexpr (std::is_floating_point_v<decltype(value)>) {
    if (!std::isfinite(value)) {
      out.text += "null";
      return;
    }
  }
  std::array<char, 32> digits;
  const auto result = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  out.text.append(digits.data(), result.ptr);
}

template <class Array>
void append_list(const arrow::Array& array, int64_t i, JsonLines& out) {
  const auto& list = static_cast<const Array&>(array);
  const auto begin = static_cast<int64_t>(list.value_offset(i));
  const auto length = static_cast<int64_t>(list.value_length(i));
  out.text += '[';
  for (int64_t k = begin; k < begin + length; ++k) {
    out.text += k > begin ? "," : "";
    append_json(*list.values(), k, out);
  }
  out.text += ']';
}

/// Appends `"key":value` unless the value is null.
void append_member(std::string_view key, const arrow::Array& values, int64_t i, JsonLines& out) {
  if (values.IsNull(i)) {
    ++out.left_out;
    require_room(out, 0);
    return;
  }
  out.text += out.text.back() == '{' ? "" : ",";
  append_json(key, out);
  out.text += ':';
  append_json(values, i, out);
}

void append_struct(const arrow::Array& array, int64_t i, JsonLines& out) {
  const auto& object = static_cast<const arrow::StructArray&>(array);
  out.text += '{';
  for (int k = 0; k < object.num_fields(); ++k) {
    append_member(object.type()->field(k)->name(), *object.field(k), i, out);
  }
  out.text += '}';
}

void append_map(const arrow::Array& array, int64_t i, JsonLines& out) {
  const auto& map = static_cast<const arrow::MapArray&>(array);
  const auto& entries = static_cast<const arrow::StructArray&>(*map.values());
  const auto& keys = static_cast<const arrow::StringArray&>(*entries.field(0));
  out.text += '{';
  for (int64_t k = map.value_offset(i); k < map.value_offset(i) + map.value_length(i); ++k) {
    append_member(keys.GetView(k), *entries.field(1), k, out);
  }
  out.text += '}';
}

/// The text is JSON already; the line breaks in it are between its values.
void append_json_text(const arrow::Array& array, int64_t i, JsonLines& out) {
  const std::string_view text = text_of(*static_cast<const arrow::ExtensionArray&>(array).storage(), i);
  require_room(out, text.size());
  for (const char c : text) {
    out.text += c == '\n' ? ' ' : c;
  }
}

bool has_json(const arrow::DataType& type) {
  const Type::type id = type.id();
  return id == Type::NA || id == Type::BOOL || arrow::is_integer(id) || id == Type::FLOAT || id == Type::DOUBLE ||
         holds_text(id) || arrow::is_temporal(id) || arrow::is_decimal(id) || is_json_text(type);
}

}  // namespace

const arrow::DataType* without_json(const arrow::DataType& type) {
  switch (type.id()) {
    case Type::DICTIONARY:
      return without_json(*static_cast<const arrow::DictionaryType&>(type).value_type());
    case Type::MAP:
      if (static_cast<const arrow::MapType&>(type).key_type()->id() != Type::STRING) {
        return &type;
      }
      [[fallthrough]];
    case Type::LIST:
    case Type::LARGE_LIST:
    case Type::FIXED_SIZE_LIST:
    case Type::LIST_VIEW:
    case Type::LARGE_LIST_VIEW:
    case Type::STRUCT:
      for (const auto& field : type.fields()) {
        if (const auto* const found = without_json(*field->type())) {
          return found;
        }
      }
      return nullptr;
    default:
      return has_json(type) ? nullptr : &type;
  }
}

void append_json(std::string_view text, JsonLines& out) {
  static constexpr std::string_view kHex = "0123456789abcdef";
  require_room(out, text.size());
  out.text += '"';
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\') {
      continue;
    }
    require_room(out, text.size() - begin);
    out.text.append(text, begin, i - begin);
    begin = i + 1;
    if (c == '\n') {
      out.text += "\\n";
    } else if (c < 0x20) {
      out.text += {'\\', 'u', '0', '0', kHex[c >> 4], kHex[c & 15]};
    } else {
      out.text += {'\\', text[i]};
    }
  }
  out.text.append(text, begin);
  out.text += '"';
}

void append_json(const arrow::Array& array, int64_t i, JsonLines& out) {
  require_room(out, 0);
  if (array.IsNull(i)) {
    out.text += "null";
    return;
  }
  switch (array.type_id()) {
    case Type::STRING:
    case Type::BINARY:
    case Type::LARGE_STRING:
    case Type::LARGE_BINARY:
    case Type::STRING_VIEW:
    case Type::BINARY_VIEW:
      return append_json(text_of(array, i), out);
    case Type::BOOL:
      out.text += static_cast<const arrow::BooleanArray&>(array).Value(i) ? "true" : "false";
      return;
    case Type::INT8:
      return append_number<arrow::Int8Array>(array, i, out);
    case Type::INT16:
      return append_number<arrow::Int16Array>(array, i, out);
    case Type::INT32:
      return append_number<arrow::Int32Array>(array, i, out);
    case Type::INT64:
      return append_number<arrow::Int64Array>(array, i, out);
    case Type::UINT8:
      return append_number<arrow::UInt8Array>(array, i, out);
    case Type::UINT16:
      return append_number<arrow::UInt16Array>(array, i, out);
    case Type::UINT32:
      return append_number<arrow::UInt32Array>(array, i, out);
    case Type::UINT64:
      return append_number<arrow::UInt64Array>(array, i, out);
    case Type::FLOAT:
      return append_number<arrow::FloatArray>(array, i, out);
    case Type::DOUBLE:
      return append_number<arrow::DoubleArray>(array, i, out);
    case Type::LIST:
      return append_list<arrow::ListArray>(array, i, out);
    case Type::LARGE_LIST:
      return append_list<arrow::LargeListArray>(array, i, out);
    case Type::FIXED_SIZE_LIST:
      return append_list<arrow::FixedSizeListArray>(array, i, out);
    case Type::LIST_VIEW:
      return append_list<arrow::ListViewArray>(array, i, out);
    case Type::LARGE_LIST_VIEW:
      return append_list<arrow::LargeListViewArray>(array, i, out);
    case Type::STRUCT:
      return append_struct(array, i, out);
    case Type::MAP:
      return append_map(array, i, out);
    case Type::DICTIONARY: {
      const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
      return append_json(*coded.dictionary(), coded.GetValueIndex(i), out);
    }
    case Type::EXTENSION:
      return append_json_text(array, i, out);
    default:
      append_json(array.GetScalar(i).ValueOrDie()->ToString(), out);
  }
}

}  // namespace lehr::data
