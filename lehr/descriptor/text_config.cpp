#include "lehr/descriptor/text_config.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "lehr/config/node_list.h"

namespace lehr::descriptor {

namespace {
// A type of models of texts and images (and sounds); their text models have the ending "_text".
struct Whole {
  std::string type;
  const char* text_class;                                 // of transformers; a published text_config names none
  std::vector<std::pair<const char*, int64_t>> defaults;  // of keys that a published text_config leaves out
  std::vector<std::string> encoder;                       // beginnings of names of the encoders' tensors
};

const std::vector<Whole>& known_types() {
  static const std::vector<Whole> types{
      {.type = "qwen3_5", .text_class = "Qwen3_5ForCausalLM", .defaults = {}, .encoder = {"model.visual."}},
      {.type = "qwen3_5_moe", .text_class = "Qwen3_5MoeForCausalLM", .defaults = {}, .encoder = {"model.visual."}},
      {.type = "gemma3",
       .text_class = "Gemma3ForCausalLM",
       .defaults =
           {{"vocab_size", 262208},
            {"num_attention_heads", 8},
            {"num_key_value_heads", 4},
            {"head_dim", 256},
            {"max_position_embeddings", 131072}},
       .encoder = {"vision_tower.", "model.vision_tower.", "multi_modal_projector.", "model.multi_modal_projector."}},
      {.type = "gemma4",
       .text_class = "Gemma4ForCausalLM",
       .defaults =
           {{"vocab_size", 262144},
            {"num_attention_heads", 8},
            {"num_key_value_heads", 4},
            {"head_dim", 256},
            {"max_position_embeddings", 131072}},
       .encoder = {"model.vision_tower.", "model.embed_vision.", "model.audio_tower.", "model.embed_audio."}}};
  return types;
}

// Keys of the whole model that hold for its text model, whatever the text_config says: transformers ties the weights of
// the whole, and generates with the tokens of the whole.
constexpr const char* kOfTheWhole[] = {
    "tie_word_embeddings", "quantization_config", "eos_token_id", "bos_token_id", "pad_token_id"};

bool has_value(const Node& config, const char* key) {
  const Node* found = config.find(key);
  return found != nullptr && !found->is_null();
}

// Sets what a config.json has and a text_config need not have. Programs that find the class of a model by its
// architectures (vLLM, llama.cpp) refuse a config.json without them.
void set_class_and_dtype(Node& text, const Node& config, const char* text_class) {
  if (!has_value(text, "architectures")) {
    text.set("architectures", node_list(std::array{std::string(text_class)}));
  }
  if (has_value(text, "dtype") || has_value(text, "torch_dtype")) {
    return;
  }
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (has_value(config, key)) {
      text.set(key, config.at(key));
      return;
    }
  }
}

bool has_type(const Node& config, const std::string& name) {
  const Node* type = config.is_table() ? config.find("model_type") : nullptr;
  return type != nullptr && type->is_string() && type->as_string() == name;
}
}  // namespace

Node text_config_of(const Node& config) {
  for (const Whole& whole : known_types()) {
    const Node* found = has_type(config, whole.type) ? config.find("text_config") : nullptr;
    if (found == nullptr || !has_type(*found, whole.type + "_text")) {
      continue;
    }
    Node text = *found;
    for (const char* key : kOfTheWhole) {
      if (const Node* value = config.find(key); value != nullptr && !value->is_null()) {
        text.set(key, *value);
      }
    }
    for (const auto& [key, value] : whole.defaults) {
      if (text.find(key) == nullptr) {
        text.set(key, Node(value));
      }
    }
    set_class_and_dtype(text, config, whole.text_class);
    return text;
  }
  return config;
}

std::vector<std::string> image_encoder_prefixes(const Node& config) {
  for (const Whole& whole : known_types()) {
    if (has_type(config, whole.type)) {
      return whole.encoder;
    }
  }
  return {};
}

std::vector<std::string> text_model_prefixes(const std::string& own) {
  return {own + kTextModelPrefix, kTextModelPrefix + own};
}

}  // namespace lehr::descriptor
