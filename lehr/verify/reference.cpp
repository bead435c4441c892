#include "lehr/verify/reference.h"

namespace lehr::verify {

at::Tensor ReferenceFile::tensor(const std::string& name) {
  read_.insert(name);
  return reader_.tensor(name);
}

std::vector<std::string> ReferenceFile::unread(bool in_float64) const {
  const std::string suffix = kFloat64Suffix;
  std::vector<std::string> names;
  for (const std::string& name : reader_.names()) {
    const bool is_twin = name.ends_with(suffix);
    const std::string base = is_twin ? name.substr(0, name.size() - suffix.size()) : name;
    if (!read_.contains(name) && (in_float64 || !is_twin || !read_.contains(base))) {
      names.push_back(prefix_ + name);
    }
  }
  return names;
}

}  // namespace lehr::verify
