#include "lehr/state/checkpoint.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string>
#include <string_view>

#include "lehr/base/error.h"
#include "lehr/state/output_file.h"

namespace lehr::state {

namespace {
namespace fs = std::filesystem;

// Hidden folders are named ".step-N." followed by one of these.
constexpr const char* kSaving = "saving";      // being written
constexpr const char* kReplaced = "replaced";  // former step-N, until its replacement is in place
constexpr const char* kDeleted = "deleted";    // being deleted

// Parses the step of a name "step-N" as written by path_of: no sign, no leading zeros.
std::optional<int64_t> step_of(std::string_view name) {
  constexpr std::string_view kPrefix = "step-";
  if (!name.starts_with(kPrefix)) {
    return std::nullopt;
  }
  const std::string_view digits = name.substr(kPrefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || end != digits.data() + digits.size() || digits != std::to_string(step) || step < 0) {
    return std::nullopt;
  }
  return step;
}

// The step and the state of a folder ".step-N.state".
struct Leftover {
  int64_t step = 0;
  std::string state;
};

std::optional<Leftover> leftover_of(const std::string& name) {
  const size_t dot = name.rfind('.');
  if (!name.starts_with('.') || dot == 0) {
    return std::nullopt;
  }
  const auto step = step_of(std::string_view(name).substr(1, dot - 1));
  const std::string state = name.substr(dot + 1);
  if (!step || (state != kSaving && state != kReplaced && state != kDeleted)) {
    return std::nullopt;
  }
  return Leftover{.step = *step, .state = state};
}

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() != fs::file_type::not_found;
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) {
    fail_runtime("{}: cannot be deleted: {}", path.string(), error.message());
  }
}

void move_to(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) {
    fail_runtime("{}: cannot be renamed to {}: {}", from.string(), to.string(), error.message());
  }
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  if (!fs::exists(folder, error) && !error) {
    return paths;
  }
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    paths.push_back(entry->path());
  }
  if (error) {
    fail_runtime("{}: cannot be listed: {}", folder.string(), error.message());
  }
  return paths;
}

// Syncs everything in the folder, then the folder itself.
void sync_tree(const fs::path& folder) {
  for (const fs::path& path : entries_of(folder)) {
    std::error_code error;
    const auto status = fs::symlink_status(path, error);
    if (fs::is_directory(status)) {
      sync_tree(path);
    } else if (fs::is_regular_file(status)) {
      OutputFile::open(path).sync();
    }
  }
  sync_folder(folder);
}

// Exchanges two names atomically. Returns false if the file system does not support it.
bool exchange(const fs::path& a, const fs::path& b) {
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) {
    return true;
  }
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) {
    fail_runtime("{}: cannot be exchanged with {}: {}", a.string(), b.string(), std::strerror(errno));
  }
  return false;
}

// Sets `newest` to the newest checkpoint in a folder and, if `deeper`, in the folders in it, if one is newer. Looks at
// no more than `entries_left` entries.
void find_newest(const fs::path& folder, bool deeper, int64_t& entries_left, std::optional<Checkpoint>& newest) {
  std::error_code error;  // a folder that cannot be listed has none
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator() && entries_left > 0; entry.increment(error)) {
    --entries_left;
    std::error_code of_entry;
    if (!entry->is_directory(of_entry)) {
      continue;
    }
    const auto step = step_of(entry->path().filename().string());
    if (step && (!newest || *step > newest->step)) {
      newest = Checkpoint{.step = *step, .path = entry->path()};
    }
    if (deeper) {
      find_newest(entry->path(), /*deeper=*/false, entries_left, newest);
    }
  }
}
}  // namespace

fs::path CheckpointStore::path_of(int64_t step) const {
  return root_ / fmt::format("step-{}", step);
}

fs::path CheckpointStore::hidden(int64_t step, const char* state) const {
  return root_ / fmt::format(".step-{}.{}", step, state);
}

fs::path CheckpointStore::temporary_path(int64_t step) const {
  return hidden(step, kSaving);
}

std::vector<Checkpoint> CheckpointStore::list() const {
  std::vector<Checkpoint> checkpoints;
  for (const fs::path& path : entries_of(root_)) {
    std::error_code error;
    if (const auto step = step_of(path.filename().string()); step && fs::is_directory(path, error)) {
      checkpoints.push_back({.step = *step, .path = path});
    }
  }
  std::sort(
      checkpoints.begin(), checkpoints.end(), [](const Checkpoint& a, const Checkpoint& b) { return a.step < b.step; });
  return checkpoints;
}

std::optional<Checkpoint> CheckpointStore::latest() const {
  const auto checkpoints = list();
  return checkpoints.empty() ? std::nullopt : std::optional(checkpoints.back());
}

std::string CheckpointStore::recover() {
  std::string problem;
  for (const fs::path& path : entries_of(root_)) {
    const auto leftover = leftover_of(path.filename().string());
    if (!leftover) {
      continue;
    }
    if (leftover->state == kReplaced && !is_there(path_of(leftover->step))) {
      move_to(path, path_of(leftover->step));
      sync_folder(root_);
    } else {
      std::error_code error;
      fs::remove_all(path, error);
      if (error && problem.empty()) {
        problem = fmt::format("{}: cannot be deleted: {}", path.string(), error.message());
      }
    }
  }
  return problem;
}

fs::path CheckpointStore::set_aside(int64_t step, const std::string& why) {
  const fs::path path = path_of(step);
  fs::path aside = fmt::format("{}.{}", path.string(), why);
  for (int64_t number = 2; is_there(aside); ++number) {
    aside = fmt::format("{}.{}-{}", path.string(), why, number);
  }
  move_to(path, aside);
  sync_folder(root_);
  return aside;
}

std::vector<int64_t> CheckpointStore::set_aside_after(int64_t step) {
  std::vector<int64_t> moved;
  for (const Checkpoint& checkpoint : list()) {
    if (checkpoint.step > step) {
      set_aside(checkpoint.step, "aside");
      moved.push_back(checkpoint.step);
    }
  }
  return moved;
}

void CheckpointStore::begin(int64_t step) {
  require(step >= 0, "{}: a checkpoint of step {}: expected a step from 0", root_.string(), step);
  const fs::path temporary = temporary_path(step);
  std::error_code error;
  if (access_ == Access::umask) {
    fs::create_directories(root_, error);
  } else if (::mkdir(root_.c_str(), 0700) != 0 && errno != EEXIST) {
    error = {errno, std::generic_category()};
  }
  if (!error) {
    remove_tree(temporary);
    fs::create_directory(temporary, error);
  }
  if (error) {
    fail_runtime("{}: cannot be created: {}", temporary.string(), error.message());
  }
}

void CheckpointStore::commit(int64_t step) {
  const fs::path temporary = temporary_path(step);
  const fs::path target = path_of(step);
  sync_tree(temporary);
  if (!is_there(target)) {
    move_to(temporary, target);
    sync_folder(root_);
    return;
  }
  if (exchange(temporary, target)) {
    sync_folder(root_);
    remove_tree(temporary);  // now the old checkpoint
    return;
  }
  // If the process is killed between the two renames, recover() restores the old checkpoint.
  const fs::path replaced = hidden(step, kReplaced);
  remove_tree(replaced);
  move_to(target, replaced);
  move_to(temporary, target);
  sync_folder(root_);
  remove_tree(replaced);
}

void CheckpointStore::abandon(int64_t step) noexcept {
  std::error_code ignored;
  fs::remove_all(temporary_path(step), ignored);
}

namespace {
// The first folder in a tree, itself included, whose entries this process may not remove; empty: there is none.
fs::path protected_folder(const fs::path& folder) {
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    return folder;
  }
  for (const fs::path& path : entries_of(folder)) {
    std::error_code error;
    if (fs::is_directory(fs::symlink_status(path, error))) {
      if (fs::path found = protected_folder(path); !found.empty()) {
        return found;
      }
    }
  }
  return {};
}
}  // namespace

std::string CheckpointStore::keep_latest(int64_t count, std::optional<int64_t> spare, std::optional<int64_t> best) {
  require(count >= 1, "{}: checkpoints to keep: expected 1 or more, found {}", root_.string(), count);
  auto checkpoints = list();
  auto surplus = static_cast<int64_t>(checkpoints.size()) - count;
  int64_t deleted = 0;
  std::string problem;
  for (const Checkpoint& checkpoint : checkpoints) {
    if (deleted >= surplus) {
      break;
    }
    if (checkpoint.step == spare) {
      continue;
    }
    if (checkpoint.step == best) {
      --surplus;
      continue;
    }
    ++deleted;
    try {
      if (const fs::path found = protected_folder(checkpoint.path); !found.empty()) {
        fail_runtime("{}: cannot be deleted, since its files are protected", found.string());
      }
      // Rename first: a partially deleted folder must not look like a checkpoint.
      const fs::path doomed = hidden(checkpoint.step, kDeleted);
      remove_tree(doomed);
      move_to(checkpoint.path, doomed);
      sync_folder(root_);
      remove_tree(doomed);
    } catch (const Error& error) {
      problem = problem.empty() ? error.what() : problem;
    }
  }
  return problem;
}

std::string meant_checkpoint(const fs::path& folder, int64_t most_entries) {
  std::optional<Checkpoint> newest;
  find_newest(folder, /*deeper=*/true, most_entries, newest);
  return newest ? fmt::format("; did you mean the newest checkpoint in it, {}?", newest->path.string()) : "";
}

}  // namespace lehr::state
