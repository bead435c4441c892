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
#include "lehr/train/find_checkpoint.h"

namespace lehr::train {

namespace {
namespace fs = std::filesystem;

constexpr const char* kPrefix = "lehr-";

std::string new_name() {
  std::random_device random;
  return fmt::format("{}{:08x}{:08x}{:08x}{:08x}", kPrefix, random(), random(), random(), random());
}

// Anybody may create names in a folder such as /dev/shm: only a folder of this user, and no link, is trusted.
bool is_own_folder(const fs::path& path) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == ::geteuid() &&
         (found.st_mode & 0077) == 0;
}

void create_own_folder(const fs::path& path) {
  require(
      ::mkdir(path.c_str(), 0700) == 0 || (errno == EEXIST && is_own_folder(path)),
      "checkpoint.local_folder: {} cannot be created: {}; choose another folder",
      path.string(),
      std::strerror(errno));
}

// Returns the folder that the file `pointer` names; empty if there is none that is this user's.
fs::path folder_before(const fs::path& pointer) {
  std::error_code error;
  if (!fs::is_regular_file(fs::symlink_status(pointer, error))) {
    return {};
  }
  const fs::path folder = read_file(pointer);
  const bool named = folder.is_absolute() && folder.filename().string().starts_with(kPrefix);
  return named && is_own_folder(folder) ? folder : fs::path();
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
}  // namespace

fs::path LocalCheckpoints::pointer() const {
  return run_ / "local_checkpoints";
}

LocalCheckpoints::LocalCheckpoints(
    const CheckpointConfig& config, fs::path run, std::shared_ptr<state::Coordinator> coordinator)
    : config_(config), run_(std::move(run)), coordinator_(std::move(coordinator)) {
  folder_ = coordinator_->from_main("local folder", [&]() -> std::string {
    before_ = folder_before(pointer());
    if (config_.local_interval == 0) {
      return "";
    }
    const fs::path made = fs::path(config_.local_folder) / new_name();
    create_own_folder(made);
    return made.string();
  });
  if (folder_.empty()) {
    return;
  }
  coordinator_->all_succeed("local folder is seen", [&] {
    if (!is_own_folder(folder_)) {
      if (coordinator_->is_main()) {
        remove_quietly(folder_);
      }
      fail(
          "checkpoint.local_interval: {} of rank 0 is not visible here: the ranks are on several machines, or do not "
          "share this folder; set the key to 0",
          folder_.string());
    }
  });
  writer_ = std::make_unique<state::AsyncCheckpointer>(state::CheckpointStore(folder_), 1, coordinator_);
}

LocalCheckpoints::~LocalCheckpoints() {
  writer_.reset();
  if (!is_open_ && coordinator_->is_main()) {
    remove_quietly(folder_);  // the start failed, and the pointer still has the one before
  }
}

int64_t LocalCheckpoints::newest() {
  return std::stoll(coordinator_->from_main("local newest", [&] {
    const auto found = before_.empty() ? std::nullopt : state::CheckpointStore(before_).latest();
    return std::to_string(found ? found->step : -1);
  }));
}

std::optional<fs::path> LocalCheckpoints::undamaged(int64_t step, std::string& damage) {
  const fs::path folder =
      coordinator_->from_main("local path", [&] { return state::CheckpointStore(before_).path_of(step).string(); });
  const auto found = damage_of_checkpoint(folder, config_.verify, *coordinator_);
  damage = found.value_or("");
  return found ? std::nullopt : std::optional(folder);
}

void LocalCheckpoints::take_over(const std::optional<fs::path>& used) {
  coordinator_->from_main("local take over", [&] {
    std::error_code error;
    if (!folder_.empty() && used && used->parent_path() == before_) {
      fs::rename(*used, folder_ / used->filename(), error);  // fails between file systems: the run's state is loaded
    }
    if (folder_.empty()) {
      fs::remove(pointer(), error);
    } else {
      fs::create_directories(run_);
      write_file_atomically(pointer(), folder_.string());
    }
    if (!before_.empty()) {
      remove_quietly(before_);
    }
    before_.clear();
    return std::string();
  });
  is_open_ = true;
}

// Why there is no room; empty if there is. The folder needs that of two checkpoints: one is kept while the next is
// written. A folder in memory also takes that of the copy that they are written from.
std::string LocalCheckpoints::lacks_space(int64_t bytes) const {
  return coordinator_->from_main("local space", [&] {
    struct statfs system {};
    if (::statfs(folder_.c_str(), &system) != 0) {
      return fmt::format("{}: {}", folder_.string(), std::strerror(errno));
    }
    const bool has_one = state::CheckpointStore(folder_).latest().has_value();  // it is the older one of the two
    std::string reason;
    if (system.f_blocks > 0) {  // 0: no limit of its own
      const auto free = static_cast<int64_t>(system.f_bavail) * static_cast<int64_t>(system.f_frsize);
      reason = lack("two local checkpoints", (has_one ? 1 : 2) * bytes, folder_.parent_path().string(), free);
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

std::optional<std::string> LocalCheckpoints::open(const std::optional<fs::path>& used, int64_t bytes) {
  take_over(used);
  const std::string reason = are_on() ? lacks_space(bytes) : "";
  if (reason.empty()) {
    return std::nullopt;
  }
  turn_off();
  require(
      used.has_value(),
      "checkpoint.local_interval: {}; set the key to 0, or checkpoint.local_folder to a folder on a disk",
      reason);
  return fmt::format("checkpoint.local_interval: {}; this start has no local checkpoints", reason);
}

void LocalCheckpoints::turn_off() {
  if (!are_on()) {
    return;
  }
  wait();
  writer_.reset();
  coordinator_->from_main("local off", [&] {
    std::error_code ignored;
    fs::remove(pointer(), ignored);
    remove_quietly(folder_);
    return std::string();
  });
  folder_.clear();
}

void LocalCheckpoints::save(const state::CheckpointContents& contents) {
  if (coordinator_->is_main() && !is_own_folder(folder_)) {
    create_own_folder(folder_);  // something cleans /dev/shm
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

}  // namespace lehr::train
