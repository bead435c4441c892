// Folders of one run below a folder that other users may write, such as /dev/shm, and the machines that share them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lehr/state/coordinator.h"

namespace lehr::train {

/// Prefix of the names of local folders.
inline constexpr const char* kLocalPrefix = "lehr-";

/// Returns the path of a folder with a random name below `parent`.
std::filesystem::path new_local_folder(const std::filesystem::path& parent);

/// True if the path is a folder, and no link, that only this user can read and write. Anybody may create names in a
/// folder such as /dev/shm, so no other is trusted.
bool is_own_folder(const std::filesystem::path& path);

/// Removes it with all that is in it, as far as possible. Several processes may call it at once.
void remove_local_folder(const std::filesystem::path& path);

/// The machines of a run: ranks are on one machine if they see the same folder.
struct Machines {
  std::vector<std::vector<int64_t>> ranks;  ///< Of each machine, ascending; machines in the order of their first ranks.
  size_t mine = 0;                          ///< That of this rank.

  size_t size() const { return ranks.size(); }
  /// True on the first rank of its machine.
  bool is_first(int64_t rank) const { return ranks[mine].front() == rank; }
  /// The machine whose files this one has copies of. Of a single machine, itself.
  size_t before(size_t machine) const { return (machine + size() - 1) % size(); }
  size_t after(size_t machine) const { return (machine + 1) % size(); }
};

/// Finds the machines by folders that the ranks create below `parent`, and removes these. All ranks must call it; each
/// has its own `parent`. Throws a usage error that names checkpoint.local_folder if a rank cannot create one.
Machines machines_of(const std::filesystem::path& parent, state::Coordinator& coordinator);

}  // namespace lehr::train
