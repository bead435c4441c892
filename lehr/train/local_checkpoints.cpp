#include "lehr/train/local_checkpoints.h"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/base/log.h"
#include "lehr/base/value_of.h"
#include "lehr/memory/granted_memory.h"
#include "lehr/train/find_checkpoint.h"

namespace lehr::train {

namespace {
namespace fs = std::filesystem;

// Identifies a folder, but not its copies. Without the number of its file system, which is one of a mount, and so
// another one on another machine.
std::string identity_of(const fs::path& folder) {
  struct stat found {};
  return ::stat(folder.c_str(), &found) == 0 ? std::to_string(found.st_ino) : "";
}

// What the pointer of a run says.
struct Pointer {
  fs::path folder;            // empty: there is none, or it is not this run's
  bool has_machines = false;  // the folder is one of several, on several machines
};

constexpr const char* kMachines = "\nmachines";

Pointer read_pointer(const fs::path& run) {
  const fs::path pointer = LocalCheckpoints::pointer_in(run);
  std::error_code error;
  if (!fs::is_regular_file(fs::symlink_status(pointer, error))) {
    return {};
  }
  std::string text = read_file(pointer);
  const bool has_machines = text.ends_with(kMachines);
  text.resize(text.size() - (has_machines ? std::strlen(kMachines) : 0));
  const size_t line = text.find('\n');
  const fs::path folder = text.substr(0, line);
  const bool named = folder.is_absolute() && folder.filename().string().starts_with(kLocalPrefix);
  std::string identity = text.substr(line == std::string::npos ? text.size() : line + 1);
  identity.erase(0, identity.find(':') + 1);  // earlier versions wrote the number of the file system, too
  return named && !identity.empty() && identity == identity_of(run) ? Pointer{folder, has_machines} : Pointer();
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

fs::path LocalCheckpoints::pointer_in(const fs::path& run) {
  return run / "local_checkpoints";
}

LocalCheckpoints::LocalCheckpoints(
    const CheckpointConfig& config,
    fs::path run,
    std::shared_ptr<state::Coordinator> coordinator,
    mesh::Transport* transport)
    : config_(config), run_(std::move(run)), coordinator_(std::move(coordinator)), transport_(transport) {
  find_before();
  if (config_.local_interval > 0) {
    machines_ = machines_of(config_.local_folder, *coordinator_);
  }
}

LocalCheckpoints::~LocalCheckpoints() = default;

void LocalCheckpoints::find_before() {
  const auto pointer = state::unpack_texts(coordinator_->from_main("local before", [&] {
    const Pointer read = read_pointer(run_);
    return state::pack_texts({read.folder.string(), read.has_machines ? "machines" : ""});
  }));
  const fs::path named = pointer.at(0);
  if (named.empty()) {
    return;
  }
  const bool has_machines = !pointer.at(1).empty();
  const fs::path here = fs::path(config_.local_folder) / named.filename();  // ranks may have other local folders
  if (has_machines && is_own_folder(here)) {
    before_ = here;
  } else if (is_own_folder(named)) {
    before_ = named;
  }
  const auto seen = coordinator_->exchange("local before is seen", before_.empty() ? "" : "yes");
  const auto unseen = std::count(seen.begin(), seen.end(), "");
  if (has_machines || (unseen > 0 && unseen < std::ssize(seen))) {
    parts_.emplace(before_, coordinator_);
  }
}

std::optional<state::Checkpoint> LocalCheckpoints::newest(const state::CheckpointStore& store) const {
  if (parts_) {
    const auto step = parts_->newest();
    return step ? std::optional(state::Checkpoint{.step = *step, .path = store.path_of(*step)}) : std::nullopt;
  }
  const state::CheckpointStore found(before_);  // empty if there is no folder
  const int64_t step = newest_step(found, "local newest", *coordinator_);
  return step < 0 ? std::nullopt : std::optional(state::Checkpoint{.step = step, .path = found.path_of(step)});
}

std::function<std::optional<std::string>()> LocalCheckpoints::writer_to(state::CheckpointStore& store, bool contents) {
  if (!is_spread()) {
    return {};
  }
  return [&parts = value_of(parts_, "parts"), &store, contents] { return parts.write_to(store, contents); };
}

std::vector<std::string> LocalCheckpoints::warnings(int64_t step) const {
  return parts_ ? parts_->warnings(step) : std::vector<std::string>();
}

// Of folders on several machines, each rank removes the one that it sees.
void LocalCheckpoints::remove(const fs::path& folder, bool on_all_machines) {
  const auto remove_pointer = [&] {
    std::error_code ignored;
    fs::remove(pointer_in(run_), ignored);  // first: nothing may be found that is half removed
    return std::string();
  };
  if (on_all_machines) {
    coordinator_->from_main("local forget", remove_pointer);
  } else if (!coordinator_->is_main() || folder.empty()) {
    return;
  } else {
    remove_pointer();
  }
  if (!folder.empty()) {
    remove_local_folder(folder);
  }
}

void LocalCheckpoints::forget_seen() {
  remove(before_, is_spread());
  parts_.reset();
  before_.clear();
}

void LocalCheckpoints::forget() {
  forget_seen();
  if (coordinator_->is_main()) {  // also of a folder that no rank sees, whose steps the run has left behind
    std::error_code ignored;
    fs::remove(pointer_in(run_), ignored);
  }
}

// Why this machine has no room; empty if it has. `kept` is what it keeps of one checkpoint: its folder needs that of
// two, since one is kept while the next is written. A folder in memory also takes the copy that they are written from.
std::string LocalCheckpoints::lacks_space(bool has_one, int64_t kept, int64_t copied) const {
  struct statfs system {};
  if (::statfs(config_.local_folder.c_str(), &system) != 0) {
    return fmt::format("{}: {}", config_.local_folder, std::strerror(errno));
  }
  const int64_t files = (has_one ? 1 : 2) * kept;
  if (system.f_blocks > 0) {  // 0: no limit of its own
    const auto free = static_cast<int64_t>(system.f_bavail) * static_cast<int64_t>(system.f_frsize);
    if (std::string reason = lack("two local checkpoints", files, config_.local_folder, free); !reason.empty()) {
      return reason;
    }
  }
  if (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC) {
    const GrantedMemory granted = granted_memory();
    if (granted.limit != "ulimit -v") {  // that is one of a process, and files do not count
      return lack(
          "two local checkpoints in memory and the copy that they are written from",
          files + copied,
          "the " + granted.limit,
          granted.bytes);
    }
  }
  return "";
}

// The same on all ranks.
std::string LocalCheckpoints::lacks_space_anywhere(const fs::path& folder, int64_t bytes, int64_t share) const {
  if (!is_on_several_machines()) {
    return coordinator_->from_main("local space", [&] {
      const bool has_one = folder == before_ && state::CheckpointStore(folder).latest();  // the older one of the two
      return lacks_space(has_one, bytes, bytes);
    });
  }
  std::vector<int64_t> shares;
  for (const std::string& text : coordinator_->exchange("local shares", std::to_string(share))) {
    shares.push_back(std::stoll(text));
  }
  std::string reason;
  coordinator_->all_succeed("local space", [&] {
    if (machines_.is_first(coordinator_->rank())) {
      const PartReplicator::Kept kept = PartReplicator::kept(machines_, shares);
      reason = lacks_space(/*has_one=*/false, kept.all, kept.own);
    }
  });
  const auto reasons = coordinator_->exchange("local lacks", reason);
  for (size_t rank = 0; rank < reasons.size(); ++rank) {
    if (!reasons[rank].empty()) {
      return fmt::format("on the machine of rank {}, with copies of another's: {}", rank, reasons[rank]);
    }
  }
  return "";
}

// With `same`, the folder of the start before.
fs::path LocalCheckpoints::choose_folder(bool same) const {
  const fs::path chosen = coordinator_->from_main(
      "local choose", [&] { return same ? before_.string() : new_local_folder(config_.local_folder).string(); });
  return is_on_several_machines() ? fs::path(config_.local_folder) / chosen.filename() : chosen;
}

void LocalCheckpoints::point_to(const fs::path& folder) const {
  fs::create_directories(run_);
  write_file_atomically(
      pointer_in(run_), folder.string() + "\n" + identity_of(run_) + (is_on_several_machines() ? kMachines : ""));
}

std::optional<std::string> LocalCheckpoints::open(bool resumes, bool resumed_from_local, int64_t bytes, int64_t share) {
  if (!resumed_from_local) {
    forget_seen();
  }
  if (config_.local_interval == 0) {
    return std::nullopt;
  }
  const bool same =
      resumed_from_local && !is_on_several_machines() && before_.parent_path() == fs::path(config_.local_folder);
  const fs::path folder = choose_folder(same);
  if (const std::string reason = lacks_space_anywhere(folder, bytes, share); !reason.empty()) {
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
  if (!is_on_several_machines()) {
    if (coordinator_->is_main()) {
      store.recover();
    }
    writer_ = std::make_unique<state::AsyncCheckpointer>(store, 1, coordinator_);
    return std::nullopt;
  }
  replicator_ = std::make_unique<PartReplicator>(machines_, *transport_, coordinator_);
  writer_ = std::make_unique<state::AsyncCheckpointer>(
      store,
      1,
      coordinator_,
      device_queues,
      state::AsyncCheckpointer::kPinnedBytes,
      [this, store](const state::CheckpointContents& contents, const std::string& failure) mutable {
        replicator_->save(store, contents, failure);
        return std::string();
      });
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
  if (!folder_.empty()) {
    remove(folder_, is_on_several_machines());
    folder_.clear();
  }
  forget();
}

}  // namespace lehr::train
