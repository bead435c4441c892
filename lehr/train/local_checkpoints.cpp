#include "lehr/train/local_checkpoints.h"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>

#include "lehr/base/crc32c.h"
#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/base/log.h"
#include "lehr/memory/granted_memory.h"
#include "lehr/train/find_checkpoint.h"

namespace lehr::train {

namespace {
namespace fs = std::filesystem;

constexpr const char* kTieInRun = ".local-checkpoints";
constexpr const char* kTie = "run";

fs::path folder_of(const CheckpointConfig& config, const fs::path& run) {
  const std::string path = fs::weakly_canonical(fs::absolute(run)).string();
  return fs::path(config.local_folder) /
         fmt::format("lehr-{}-{:08x}", ::geteuid(), crc32c(std::as_bytes(std::span(path))));
}

// Anybody may create names in a folder such as /dev/shm, so the folder may be another user's, or a link.
void create_own(const fs::path& folder) {
  if (::mkdir(folder.c_str(), 0700) == 0) {
    return;
  }
  const int error = errno;
  struct stat found {};
  require(
      error == EEXIST && ::lstat(folder.c_str(), &found) == 0,
      "checkpoint.local_folder: {} cannot be created: {}",
      folder.string(),
      std::strerror(error));
  require(
      S_ISDIR(found.st_mode) && found.st_uid == ::geteuid() && (found.st_mode & 0077) == 0,
      "checkpoint.local_folder: {} is not a folder that only this user can read and write; remove it, or choose another "
      "folder",
      folder.string());
}

std::string read_tie(const fs::path& file) {
  return fs::is_regular_file(fs::symlink_status(file)) ? read_file(file) : "";
}

std::string new_tie() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

// Returns the text that ties both folders together. A local folder of another run is emptied.
std::string tie(const fs::path& folder, const fs::path& run) {
  create_own(folder);
  fs::create_directories(run);
  std::string wanted = read_tie(run / kTieInRun);
  if (wanted.empty()) {
    wanted = new_tie();
    write_file_atomically(run / kTieInRun, wanted);
  }
  if (read_tie(folder / kTie) != wanted) {
    fs::remove_all(folder);
    create_own(folder);
    write_file_atomically(folder / kTie, wanted);
  }
  return wanted;
}

bool is_in_memory(const struct statfs& system) {
  return system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC;
}

void require_free(const std::string& where, int64_t free, const std::string& what, int64_t bytes) {
  require(
      free >= bytes,
      "checkpoint.local_interval: {} take {}, but {} has {} left; set the key to 0, or checkpoint.local_folder to a "
      "folder on a disk of this machine",
      what,
      human_bytes(static_cast<double>(bytes)),
      where,
      human_bytes(static_cast<double>(free)));
}
}  // namespace

LocalCheckpoints::LocalCheckpoints(
    const CheckpointConfig& config, const fs::path& run, std::shared_ptr<state::Coordinator> coordinator)
    : config_(config), coordinator_(std::move(coordinator)) {
  const fs::path folder = folder_of(config, run);
  const std::string wanted = coordinator_->from_main("local tie", [&] { return tie(folder, run); });
  coordinator_->all_succeed("local folder", [&] {
    require(
        read_tie(folder / kTie) == wanted,
        "checkpoint.local_interval: {} of rank 0 is not visible here; local checkpoints need all ranks on one machine. "
        "Set the key to 0, or checkpoint.local_folder to a folder that all ranks share",
        folder.string());
  });
  store_ = std::make_unique<state::CheckpointStore>(folder);
  writer_ = std::make_unique<state::AsyncCheckpointer>(*store_, 1, coordinator_);
}

LocalCheckpoints::~LocalCheckpoints() = default;

std::optional<state::Checkpoint> LocalCheckpoints::find(int64_t above, std::vector<std::string>& warnings) {
  const int64_t step = std::stoll(coordinator_->from_main("local newest", [&] {
    store_->recover();
    const auto newest = store_->latest();
    return std::to_string(newest && newest->step > above ? newest->step : -1);
  }));
  if (step >= 0) {
    const fs::path folder = store_->path_of(step);
    const auto damage = damage_of_checkpoint(folder, config_.verify, *coordinator_);
    if (!damage) {
      return state::Checkpoint{.step = step, .path = folder};
    }
    if (coordinator_->is_main()) {
      warnings.push_back(fmt::format("{}; that local checkpoint is removed", *damage));
    }
  }
  coordinator_->from_main("local clear", [&] {
    for (const auto& old : store_->list()) {
      fs::remove_all(old.path);
    }
    return std::string();
  });
  return std::nullopt;
}

void LocalCheckpoints::require_space(int64_t bytes) {
  coordinator_->from_main("local space", [&] {
    struct statfs system {};
    if (::statfs(store_->root().c_str(), &system) == 0) {
      const int64_t there = store_->latest() ? bytes : 0;  // it is the older one of the two
      const int64_t free = static_cast<int64_t>(system.f_bavail) * system.f_bsize;
      require_free(store_->root().string(), free + there, "two local checkpoints", 2 * bytes);
      if (is_in_memory(system)) {
        const GrantedMemory granted = granted_memory();
        require_free(
            "the " + granted.limit,
            granted.bytes + there,
            "two local checkpoints in memory and the copy that they are written from",
            3 * bytes);
      }
    }
    return std::string();
  });
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

void LocalCheckpoints::remove() {
  writer_->wait();
  coordinator_->from_main("local remove", [&] {
    std::error_code ignored;
    fs::remove_all(store_->root(), ignored);
    return std::string();
  });
}

}  // namespace lehr::train
