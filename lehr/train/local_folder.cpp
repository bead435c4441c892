#include "lehr/train/local_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <random>

#include "lehr/base/error.h"

namespace lehr::train {

namespace fs = std::filesystem;

namespace {
// Exists until the end of its scope.
class Probe {
 public:
  explicit Probe(const fs::path& parent) : path_(new_local_folder(parent)) {}
  ~Probe() { ::rmdir(path_.c_str()); }
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  void create() const {
    require(
        ::mkdir(path_.c_str(), 0700) == 0,
        "checkpoint.local_folder: {} cannot be created: {}; choose another folder",
        path_.string(),
        std::strerror(errno));
  }
  std::string name() const { return path_.filename().string(); }

 private:
  fs::path path_;
};
}  // namespace

fs::path new_local_folder(const fs::path& parent) {
  std::random_device random;
  return parent / fmt::format("{}{:08x}{:08x}{:08x}{:08x}", kLocalPrefix, random(), random(), random(), random());
}

bool is_own_folder(const fs::path& path) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == ::geteuid() &&
         (found.st_mode & 0077) == 0;
}

void remove_local_folder(const fs::path& path) {
  // Under another name nobody else removes it at the same time.
  const fs::path mine = new_local_folder(path.parent_path());
  std::error_code error;
  fs::rename(path, mine, error);
  fs::remove_all(error ? path : mine, error);
}

Machines machines_of(const fs::path& parent, state::Coordinator& coordinator) {
  const Probe probe(parent);
  coordinator.all_succeed("local probe", [&] { probe.create(); });
  const auto probes = coordinator.exchange("local probes", probe.name());
  size_t seen = 0;  // the first rank whose probe is below this rank's folder
  while (!is_own_folder(parent / probes.at(seen))) {
    ++seen;
  }
  const auto first_seen = coordinator.exchange("local machines", std::to_string(seen));  // all have looked
  Machines machines;
  std::map<std::string, size_t> numbers;
  for (size_t rank = 0; rank < first_seen.size(); ++rank) {
    const size_t machine = numbers.try_emplace(first_seen[rank], machines.size()).first->second;
    machines.ranks.resize(std::max(machines.size(), machine + 1));
    machines.ranks[machine].push_back(static_cast<int64_t>(rank));
    if (static_cast<int64_t>(rank) == coordinator.rank()) {
      machines.mine = machine;
    }
  }
  return machines;
}

}  // namespace lehr::train
