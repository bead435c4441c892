#include "lehr/model/quantization_config.h"

#include <string>

#include "lehr/base/error.h"

namespace lehr::model {

namespace {
// The value of a key for a message, and nothing for an absent one.
std::string text_of(const Node& table, const char* key) {
  const Node* found = table.find(key);
  return found == nullptr || found->is_null() ? "none" : found->is_string() ? found->as_string() : "another value";
}

bool is_block_size(const Node& size) {
  constexpr int64_t kBlock = 128;
  return size.is_list() && size.size() == 2 && size.at(0).is_int() && size.at(1).is_int() &&
         size.at(0).as_int() == kBlock && size.at(1).as_int() == kBlock;
}
}  // namespace

void check_quantization(const Node& config) {
  const Node* quantization = config.find("quantization_config");
  if (quantization == nullptr || quantization->is_null()) {
    return;
  }
  const auto expect = [&](bool condition, const char* key, const char* expected, const std::string& found) {
    require(
        condition,
        "{}: quantization_config{}{}: expected {}, found {}; load the model with transformers, dequantize it and save "
        "it in bfloat16",
        config.origin(),
        *key != '\0' ? "." : "",
        key,
        expected,
        found);
  };
  expect(quantization->is_table(), "", "a table", "another value");
  const std::string method = text_of(*quantization, "quant_method");
  expect(method == "mxfp4" || method == "fp8", "quant_method", "mxfp4 or fp8", method);
  if (method == "fp8") {
    const std::string format = text_of(*quantization, "fmt");
    // MiniMax M2's files have torch's name of the dtype.
    expect(format == "e4m3" || format == "float8_e4m3fn" || format == "none", "fmt", "e4m3", format);
    const Node* size = quantization->find("weight_block_size");  // absent: 128 x 128, as in transformers
    expect(size == nullptr || is_block_size(*size), "weight_block_size", "[128, 128]", "another value");
  }
}

}  // namespace lehr::model
