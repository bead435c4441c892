// Values of Arrow arrays as JSON. Part of the module liblehr_arrow.so.
#pragma once

#include <arrow/array.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lehr::data {

/// Lines of JSON, and their limits: lists of nulls and views of the same values expand a few bytes to text of any
/// length.
struct JsonLines {
  std::string text{};
  size_t left_out = 0;  ///< Keys of null values, in all lines so far.
  size_t most_bytes = 0;
  size_t most_left_out = 0;
};

/// Returns the first type in `type` that has no JSON here, such as a union; null if there is none.
const arrow::DataType* without_json(const arrow::DataType& type);

/// Appends value `i` of an array whose type has JSON. Null is `null`; in an object, its key is left out, as Arrow
/// cannot tell it from a key that is not there. Times and decimals are strings, as are bytes, which must be UTF-8.
/// Throws std::length_error at the limits of `out`.
void append_json(const arrow::Array& array, int64_t i, JsonLines& out);

/// Appends a string in quotes. Throws std::length_error at the limits of `out`.
void append_json(std::string_view text, JsonLines& out);

}  // namespace lehr::data
