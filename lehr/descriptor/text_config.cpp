#include "lehr/descriptor/text_config.h"

#include <string>

namespace lehr::descriptor {

namespace {
constexpr const char* kTypes[] = {"qwen3_5", "qwen3_5_moe"};  // their text models have the ending "_text"
constexpr const char* kShared[] = {"tie_word_embeddings", "quantization_config"};

bool has_type(const Node& config, const std::string& name) {
  const Node* type = config.is_table() ? config.find("model_type") : nullptr;
  return type != nullptr && type->is_string() && type->as_string() == name;
}
}  // namespace

Node text_config_of(const Node& config) {
  for (const std::string type : kTypes) {
    const Node* found = has_type(config, type) ? config.find("text_config") : nullptr;
    if (found == nullptr || !has_type(*found, type + "_text")) {
      continue;
    }
    Node text = *found;
    for (const char* key : kShared) {
      if (const Node* value = config.find(key); value != nullptr && text.find(key) == nullptr) {
        text.set(key, *value);
      }
    }
    return text;
  }
  return config;
}

}  // namespace lehr::descriptor
