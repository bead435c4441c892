#include "lehr/base/cgroups.h"

#include <fstream>

namespace lehr {

namespace fs = std::filesystem;

std::vector<Cgroup> cgroups_of(const std::string& controller, const fs::path& root) {
  const fs::path top = root / "sys/fs/cgroup";
  std::vector<Cgroup> groups;
  // A line of /proc/self/cgroup is "number:controllers:/group"; version 2 has no controllers.
  std::ifstream stream(root / "proc/self/cgroup");
  for (std::string line; std::getline(stream, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool is_version_2 = controllers == ",,";
    if (!is_version_2 && controllers.find("," + controller + ",") == std::string::npos) {
      continue;
    }
    fs::path group = fs::path(line.substr(second + 1)).relative_path();
    for (bool is_top = false; !is_top; group = group.parent_path()) {
      is_top = group.empty() || group == group.parent_path();
      groups.push_back({.folder = (is_version_2 ? top : top / controller) / group, .is_version_2 = is_version_2});
    }
  }
  return groups;
}

}  // namespace lehr
