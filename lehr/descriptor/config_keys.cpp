#include "lehr/descriptor/config_keys.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/config/json.h"
#include "lehr/config/suggest.h"

namespace lehr::descriptor {

namespace {
// Keys that families read only where config.json lacks another one, which it always has here.
constexpr std::pair<const char*, const char*> kDecidedBy[] = {
    {"full_attention_interval", "layer_types"},
    {"max_window_layers", "layer_types"},
    {"no_rope_layer_interval", "no_rope_layers"},
    {"rope_local_base_freq", "rope_parameters.sliding_attention.rope_theta"},
    {"rotary_dim", "partial_rotary_factor"},
    {"sliding_window_pattern", "layer_types"},
    {"use_sliding_window", "layer_types"}};

// Keys of config.json that say nothing about the shape, or that the task decides.
constexpr const char* kNotOfTheShape[] = {
    "architectures",
    "classifier_dropout",
    "id2label",
    "label2id",
    "model_type",
    "token_classification_bias",
    "torch_dtype",
    "use_cache"};

bool is_not_of_the_shape(const std::string& key) {
  return std::find(std::begin(kNotOfTheShape), std::end(kNotOfTheShape), key) != std::end(kNotOfTheShape);
}

const char* decided_by(const std::string& key) {
  const auto* const found =
      std::find_if(std::begin(kDecidedBy), std::end(kDecidedBy), [&](const auto& pair) { return key == pair.first; });
  return found == std::end(kDecidedBy) ? nullptr : found->second;
}

// Removes an entry, such as "a.b" of the table a, if there is one.
void erase(Node& table, const std::string& key) {
  const size_t dot = key.find('.');
  if (dot == std::string::npos) {
    table.erase(key);
  } else if (Node* inner = table.find(key.substr(0, dot)); inner != nullptr && inner->is_table()) {
    erase(*inner, key.substr(dot + 1));
  }
}

bool is_number(const Node& node) {
  return node.is_int() || node.is_double();
}

// Whether `written`, a value of a config.json that Lehr wrote, has the meaning of `given`.
bool says(const Node& written, const Node& given) {
  if (is_number(given)) {
    return is_number(written) && written.as_double() == given.as_double();
  }
  if (given.is_list()) {
    const Node::List& items = given.items();
    if (!written.is_list()) {
      return items.size() == 1 && says(written, items.front());  // a single id
    }
    return std::equal(written.items().begin(), written.items().end(), items.begin(), items.end(), says);
  }
  if (given.is_table()) {
    if (written.is_null()) {
      return true;  // rope_scaling that says "default"
    }
    const auto& entries = given.entries();
    return written.is_table() && std::all_of(entries.begin(), entries.end(), [&](const auto& entry) {
             const Node* inner = written.find(entry.first);
             return inner == nullptr || says(*inner, entry.second);  // rope_type has an older name
           });
  }
  return to_json(written) == to_json(given);
}

class ConfigKeys {
 public:
  ConfigKeys(const ModelFamily& family, const ModelArgs& args, const Node& keys, const std::string& table)
      : family_(family),
        keys_(keys),
        table_(table),
        keeps_mtp_(args.keeps_mtp_modules()),
        config_(args.to_hf_config("float32")) {
    config_.set_origin({.file = table});
    const Node before = config_;
    for (const auto& [key, value] : keys_.entries()) {
      require_of_shape(key);
      const Node* old = before.find(key);
      const char* other = decided_by(key);
      if (other != nullptr && !is_given(other) && (old == nullptr || !says(*old, value))) {
        erase(config_, other);
      }
      config_.set(key, value);
    }
  }

  std::unique_ptr<ModelArgs> changed() const {
    auto result = family_.from_hf_config(config_);
    result->keep_mtp_modules(keeps_mtp_);
    const Node written = result->to_hf_config("float32");
    for (const auto& [key, value] : keys_.entries()) {
      if (written.find(key) == nullptr) {
        require_read(key, written);
      }
    }
    require_in_effect(*result, keys_, table_);
    return result;
  }

 private:
  bool is_given(const std::string& path) const { return keys_.find(path.substr(0, path.find('.'))) != nullptr; }

  void require_of_shape(const std::string& key) const {
    require(
        !is_not_of_the_shape(key),
        "{}.{}: is not a part of the shape; model.name, [training] and the task decide it. Remove it",
        table_,
        key);
  }

  // Whether an integer key that config.json does not have would change the model if the key that decides were absent.
  bool is_read(const std::string& key) const {
    const char* other = decided_by(key);
    if (other == nullptr) {
      return false;
    }
    Node config = config_;
    erase(config, other);
    const auto with = [&](int64_t value) {
      config.set(key, Node(value));
      return to_json(family_.from_hf_config(config)->to_hf_config("float32"));
    };
    return with(1) != with(2);
  }

  void require_read(const std::string& key, const Node& written) const {
    if (is_read(key)) {
      require(
          !is_given(decided_by(key)),
          "{}.{}: has no effect beside {}.{}; remove one of them",
          table_,
          key,
          table_,
          decided_by(key));
      return;
    }
    std::vector<std::string> known;
    for (const auto& [name, value] : written.entries()) {
      if (!is_not_of_the_shape(name)) {
        known.push_back(name);
      }
    }
    const auto near = suggest(key, known);
    fail(
        "{}.{}: unknown key{} The config.json of this model has {}",
        table_,
        key,
        near ? fmt::format("; did you mean '{}.{}'?", table_, *near) : ".",
        fmt::join(known, ", "));
  }

  const ModelFamily& family_;
  const Node& keys_;
  const std::string& table_;
  bool keeps_mtp_;
  Node config_;  // with the keys
};
}  // namespace

std::unique_ptr<ModelArgs> ModelFamily::with_config_keys(
    const ModelArgs& args, const Node& keys, const std::string& table) const {
  return ConfigKeys(*this, args, keys, table).changed();
}

void require_in_effect(const ModelArgs& args, const Node& keys, const std::string& table) {
  const Node written = args.to_hf_config("float32");
  for (const auto& [key, value] : keys.entries()) {
    const Node* found = written.find(key);
    require(
        found == nullptr ? decided_by(key) != nullptr : says(*found, value),
        "{}.{}: has no effect: the config.json of this model has {} there, because of its family, its tokenizer or "
        "another key; remove it",
        table,
        key,
        found == nullptr ? "nothing" : to_json(*found));
  }
}

}  // namespace lehr::descriptor
