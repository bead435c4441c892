// What the readers of block configs share: tables that are read key by key, and the one dialect that has no
// block_configs.
#pragma once

#include <string>
#include <vector>

#include "lehr/base/node.h"
#include "lehr/descriptor/block_config.h"

namespace lehr::descriptor {

/// Throws a usage error with file and key of the value before `why`.
[[noreturn]] void refuse(const Node& value, const std::string& why);

/// The entries of a table, read by name; what nobody asked for is unknown. null is as good as absent.
class Entries {
 public:
  /// Throws a usage error if it is no table.
  explicit Entries(const Node& table);

  const Node* get(const char* key);
  bool has(const char* key) const { return table_.find(key) != nullptr; }
  /// Throws a usage error if it is not there, or no integer.
  int64_t integer(const char* key);
  /// false if it is not there.
  bool flag(const char* key);
  /// Throws a usage error unless it is false or not there. `what` is as "sink tokens are".
  void refuse_flag(const char* key, const char* what);
  void refuse_value(const char* key, const char* what);

  /// Throws a usage error that lists the known keys if there are others.
  void finish() const;

 private:
  const Node& table_;
  std::vector<std::string> asked_;
};

std::vector<BlockConfig> read_per_layer_config(const Node& table, const LayersByDefault& model);

}  // namespace lehr::descriptor
