#include "lehr/train/local_checkpoints.h"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/base/log.h"
#include "lehr/memory/granted_memory.h"

namespace lehr::train {

namespace {
namespace fs = std::filesystem;

constexpr const char* kPrefix = "lehr-";

fs::path new_folder(const CheckpointConfig& config) {
  std::random_device random;
  return fs::path(config.local_folder) /
         fmt::format("{}{:08x}{:08x}{:08x}{:08x}", kPrefix, random(), random(), random(), random());
}

// Anybody may create names in a folder such as /dev/shm: only a folder of this user, and no link, is trusted.
bool is_own_folder(const fs::path& path) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == ::geteuid() &&
         (found.st_mode & 0077) == 0;
}

// Identifies a folder, but not its copies.
std::string identity_of(const fs::path& folder) {
  struct stat found {};
  return ::stat(folder.c_str(), &found) == 0 ? fmt::format("{}:{}", found.st_dev, found.st_ino) : "";
}

// Returns the folder that the pointer of `run` names; empty if there is none that is this user's and this run's.
fs::path folder_before(const fs::path& run) {
  const fs::path pointer = LocalCheckpoints::pointer_in(run);
  std::error_code error;
  if (!fs::is_regular_file(fs::symlink_status(pointer, error))) {
    return {};
  }
  const std::string text = read_file(pointer);
  const size_t line = text.find('\n');
  const fs::path folder = text.substr(0, line);
  const bool named = folder.is_absolute() && folder.filename().string().starts_with(kPrefix);
  return named && text.substr(line + 1) == identity_of(run) && is_own_folder(folder) ? folder : fs::path();
}

void remove_quietly(const fs::path& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

std::string lack(const std::string& what, int64_t bytes, const std::string& where, int64_t free) {
  return free >= bytes ? ""
                       : fmt::format(
                             "{} take {}, but {} has {} left",
                             what,
                             human_bytes(static_cast<double>(bytes)),
                             where,
                             human_bytes(static_cast<double>(free)));
}

// Creates a folder and removes it again.
void require_shared_folder(const CheckpointConfig& config, state::Coordinator& coordinator) {
  const fs::path probe = coordinator.from_main("local folder", [&] {
    const fs::path made = new_folder(config);
    require(
        ::mkdir(made.c_str(), 0700) == 0,
        "checkpoint.local_folder: {} cannot be created: {}; choose another folder",
        made.string(),
        std::strerror(errno));
    return made.string();
  });
  const auto seen = coordinator.exchange("local folder is seen", is_own_folder(probe) ? "yes" : "");
  if (coordinator.is_main()) {
    remove_quietly(probe);
  }
  for (size_t rank = 0; rank < seen.size(); ++rank) {
    require(
        !seen[rank].empty(),
        "checkpoint.local_interval: rank {} does not see the folder {} of rank 0: it is on another machine, or has "
        "another folder of this name; set the key to 0",
        rank,
        config.local_folder);
  }
}
}  // namespace

fs::path LocalCheckpoints::pointer_in(const fs::path& run) {
  return run / "local_checkpoints";
}

LocalCheckpoints::LocalCheckpoints(
    const CheckpointConfig& config, fs::path run, std::shared_ptr<state::Coordinator> coordinator)
    : config_(config), run_(std::move(run)), coordinator_(std::move(coordinator)) {
  before_ = coordinator_->from_main("local before", [&] { return folder_before(run_).string(); });
  if (config_.local_interval > 0) {
    require_shared_folder(config_, *coordinator_);
  }
}

LocalCheckpoints::~LocalCheckpoints() = default;

std::optional<state::Checkpoint> LocalCheckpoints::newest() const {
  const int64_t step = std::stoll(coordinator_->from_main("local newest", [&] {
    const auto found = before_.empty() ? std::nullopt : state::CheckpointStore(before_).latest();
    return std::to_string(found ? found->step : -1);
  }));
  return step < 0
             ? std::nullopt
             : std::optional(state::Checkpoint{.step = step, .path = state::CheckpointStore(before_).path_of(step)});
}

void LocalCheckpoints::forget() {
  if (coordinator_->is_main() && !before_.empty()) {
    std::error_code ignored;
    fs::remove(pointer_in(run_), ignored);  // first: nothing may be found that is half removed
    remove_quietly(before_);
  }
  before_.clear();
}

// Why there is no room; empty if there is. The folder needs that of two checkpoints: one is kept while the next is
// written. A folder in memory also takes that of the copy that they are written from.
std::string LocalCheckpoints::lacks_space(const fs::path& folder, int64_t bytes) const {
  return coordinator_->from_main("local space", [&] {
    struct statfs system {};
    if (::statfs(config_.local_folder.c_str(), &system) != 0) {
      return fmt::format("{}: {}", config_.local_folder, std::strerror(errno));
    }
    const bool has_one = folder == before_ && state::CheckpointStore(folder).latest();  // the older one of the two
    std::string reason;
    if (system.f_blocks > 0) {  // 0: no limit of its own
      const auto free = static_cast<int64_t>(system.f_bavail) * static_cast<int64_t>(system.f_frsize);
      reason = lack("two local checkpoints", (has_one ? 1 : 2) * bytes, config_.local_folder, free);
    }
    if (reason.empty() && (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC)) {
      const GrantedMemory granted = granted_memory();
      if (granted.limit != "ulimit -v") {  // that is one of a process, and files do not count
        reason = lack(
            "two local checkpoints in memory and the copy that they are written from",
            (has_one ? 2 : 3) * bytes,
            "the " + granted.limit,
            granted.bytes);
      }
    }
    return reason;
  });
}

void LocalCheckpoints::point_to(const fs::path& folder) const {
  fs::create_directories(run_);
  write_file_atomically(pointer_in(run_), folder.string() + "\n" + identity_of(run_));
}

std::optional<std::string> LocalCheckpoints::open(bool resumes, bool resumed_from_local, int64_t bytes) {
  if (!resumed_from_local) {
    forget();
  }
  if (config_.local_interval == 0) {
    return std::nullopt;
  }
  const bool same = resumed_from_local && before_.parent_path() == fs::path(config_.local_folder);
  const fs::path folder =
      coordinator_->from_main("local choose", [&] { return same ? before_.string() : new_folder(config_).string(); });
  if (const std::string reason = lacks_space(folder, bytes); !reason.empty()) {
    require(
        resumes,
        "checkpoint.local_interval: {}; set the key to 0, or checkpoint.local_folder to a folder on a disk",
        reason);
    return fmt::format("checkpoint.local_interval: {}; this start has no local checkpoints", reason);
  }
  if (!same && resumed_from_local) {
    return fmt::format(
        "checkpoint.local_folder: the newest state is in {}; local checkpoints begin with the next start",
        before_.string());
  }
  coordinator_->from_main("local point", [&] {
    if (!same) {
      point_to(folder);
    }
    return std::string();
  });
  folder_ = folder;
  before_.clear();
  state::CheckpointStore store(folder_, state::CheckpointStore::Access::owner);
  if (coordinator_->is_main()) {
    store.recover();
  }
  writer_ = std::make_unique<state::AsyncCheckpointer>(store, 1, coordinator_);
  return std::nullopt;
}

void LocalCheckpoints::save(const state::CheckpointContents& contents) {
  std::error_code ignored;
  if (coordinator_->is_main() && !fs::exists(pointer_in(run_), ignored)) {  // removed with the run's checkpoints
    try {
      point_to(folder_);
    } catch (const Error&) {  // the disk is full; the next save tries it again
    }
  }
  writer_->save(contents);
}

void LocalCheckpoints::wait() {
  if (are_on()) {
    writer_->wait();
  }
}

std::optional<std::string> LocalCheckpoints::take_failure() {
  std::optional<std::string> message;
  while (const auto result = writer_->poll()) {
    if (!result->ok()) {
      message = fmt::format("the local checkpoint of step {} was not saved: {}", result->step, result->error);
    }
  }
  return message;
}

void LocalCheckpoints::close() {
  wait();
  writer_.reset();
  if (before_.empty()) {
    before_ = folder_;
  }
  folder_.clear();
  forget();
}

}  // namespace lehr::train
