#include "lehr/nn/named_modules.h"

#include "lehr/nn/module.h"

namespace lehr::nn {

namespace {
void collect(const torch::nn::Module& module, const std::string& prefix, NamedModules& found) {
  const auto* own = dynamic_cast<const Module*>(&module);
  const bool names = own == nullptr || own->names_children();  // otherwise it only groups parts of one model
  for (const auto& child : module.named_children()) {
    if (names) {
      found.emplace_back(prefix + child.key(), child.value().get());
    }
    collect(*child.value(), names ? prefix + child.key() + "." : prefix, found);
  }
}
}  // namespace

NamedModules named_modules(const torch::nn::Module& root) {
  NamedModules modules;
  collect(root, "", modules);
  return modules;
}

}  // namespace lehr::nn
