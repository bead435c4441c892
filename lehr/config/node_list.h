// Lists of nodes from other containers.
#pragma once

#include "lehr/config/node.h"

namespace lehr {

/// Returns a list of `node_of(item)` for each item.
template <class Items, class NodeOf>
Node node_list(const Items& items, const NodeOf& node_of) {
  Node list = Node::make_list();
  for (const auto& item : items) {
    list.push_back(node_of(item));
  }
  return list;
}

/// Returns a list of Node(item) for each item.
template <class Items>
Node node_list(const Items& items) {
  return node_list(items, [](const auto& item) { return Node(item); });
}

}  // namespace lehr
