// Values of Arrow arrays as JSON. Part of the module liblehr_arrow.so.
#pragma once

#include <arrow/array.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace lehr::data {

/// Returns the first type in `type` that has no JSON here, such as a union; null if there is none.
const arrow::DataType* without_json(const arrow::DataType& type);

/// Appends value `i` of an array whose type has JSON. Null is `null`; in an object, its key is left out, as Arrow
/// cannot tell it from a key that is not there. Times and decimals are strings, as are bytes, which must be UTF-8.
void append_json(const arrow::Array& array, int64_t i, std::string& out);

/// Appends a string in quotes.
void append_json(std::string_view text, std::string& out);

}  // namespace lehr::data
