#include "lehr/train/part_replicator.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <exception>
#include <numeric>
#include <optional>
#include <span>

#include "lehr/base/crc32c.h"
#include "lehr/base/error.h"
#include "lehr/base/torch.h"
#include "lehr/base/value_of.h"
#include "lehr/state/checkpoint_part.h"
#include "lehr/state/input_file.h"
#include "lehr/state/output_file.h"

namespace lehr::train {

namespace {
namespace fs = std::filesystem;

std::span<std::byte> writable_bytes(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

// Keeps the first exception of several actions, as the other ranks expect all messages.
class FirstFailure {
 public:
  template <class Action>
  void attempt(const Action& action) {
    try {
      if (!failure_) {
        action();
      }
    } catch (const std::exception&) {
      failure_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (failure_) {
      std::rethrow_exception(failure_);
    }
  }

 private:
  std::exception_ptr failure_;
};
}  // namespace

// The part of another rank on its way to this one.
class PartReplicator::Incoming {
 public:
  Incoming(int64_t from, fs::path folder)
      : from_(from), folder_(std::move(folder)), announced_(at::zeros({2}, at::kLong)) {}

  mesh::Pending start_announcement(const mesh::Group& group) const { return group.start_receive(announced_, from_); }
  int64_t num_bytes() const { return announced_[0].item<int64_t>(); }

  void create() {
    std::error_code error;
    fs::create_directory(folder_, error);
    if (error) {
      fail_runtime("{}: cannot be created: {}", folder_.string(), error.message());
    }
    file_.emplace(state::OutputFile::create(folder_ / state::kPartFile, num_bytes()));
  }

  // Starts to receive at most `size` bytes from `offset` on, if there are any.
  mesh::Pending start_piece(const mesh::Group& group, int64_t offset, int64_t size) {
    piece_ = at::empty({std::clamp<int64_t>(num_bytes() - offset, 0, size)}, at::kByte);
    return piece_.numel() > 0 ? group.start_receive(piece_, from_) : mesh::Pending();
  }

  void write_piece(int64_t offset) {
    if (piece_.numel() > 0) {
      crc_ = crc32c_linear(writable_bytes(piece_), crc_);
      value_of(file_, "file").write(offset, writable_bytes(piece_));
    }
  }

  void finish() {
    const uint32_t crc = crc32c_from_linear(crc_, num_bytes());
    if (crc != announced_[1].item<int64_t>()) {
      fail_runtime("{}: the bytes that arrived are not those that rank {} sent", folder_.string(), from_);
    }
    value_of(file_, "file").sync();
    state::write_part_integrity(folder_, num_bytes(), crc);
  }

 private:
  int64_t from_;
  fs::path folder_;
  at::Tensor announced_;  // size and checksum
  at::Tensor piece_;
  std::optional<state::OutputFile> file_;
  uint32_t crc_ = 0;
};

PartReplicator::PartReplicator(
    Machines machines, mesh::Transport& transport, std::shared_ptr<state::Coordinator> coordinator, int64_t piece_bytes)
    : machines_(std::move(machines)), coordinator_(std::move(coordinator)), piece_bytes_(piece_bytes) {
  const std::string name = "local checkpoints";
  std::vector<int64_t> all(static_cast<size_t>(transport.world_size()));
  std::iota(all.begin(), all.end(), 0);
  // Without the watchdog, which aborts the one message that the thread of the collectives waits for. If a rank dies,
  // its connections end; the time limit of a collective holds for messages, too.
  group_ = std::make_unique<mesh::Group>(name, all, transport.rank(), transport.connect(name, all));
  // Rank i of a machine sends to rank i of the next one, which may have fewer.
  const auto& here = machines_.ranks[machines_.mine];
  const auto& next = machines_.ranks[machines_.after(machines_.mine)];
  const auto& previous = machines_.ranks[machines_.before(machines_.mine)];
  const auto index = static_cast<size_t>(std::find(here.begin(), here.end(), transport.rank()) - here.begin());
  to_ = next[index % next.size()];
  for (size_t i = index; i < previous.size(); i += here.size()) {
    from_.push_back(previous[i]);
  }
}

PartReplicator::Kept PartReplicator::kept(const Machines& machines, const std::vector<int64_t>& bytes_of_ranks) {
  const auto of_machine = [&](size_t machine) {
    int64_t bytes = 0;
    for (const int64_t rank : machines.ranks[machine]) {
      bytes += bytes_of_ranks.at(static_cast<size_t>(rank));
    }
    return bytes;
  };
  const int64_t own = of_machine(machines.mine);
  return {.own = own, .all = own + of_machine(machines.before(machines.mine))};
}

// Sends this rank's part to the next machine, and receives those for which this rank keeps the copies. Errors of files
// are thrown at the end, when no other rank waits for a message of this one any more.
void PartReplicator::copy(const fs::path& folder, const state::FileIntegrity& mine) const {
  const int64_t world_size = group_->size();
  const auto folder_of = [&](int64_t rank) {
    return folder / state::folder_name({.rank = rank, .world_size = world_size});
  };
  std::vector<Incoming> parts;
  for (const int64_t rank : from_) {
    parts.emplace_back(rank, folder_of(rank));
  }
  std::vector<mesh::Pending> pending;
  const auto wait = [&] {
    for (mesh::Pending& one : pending) {
      one.wait();
    }
    pending.clear();
  };
  for (const Incoming& part : parts) {
    pending.push_back(part.start_announcement(*group_));
  }
  const std::vector<int64_t> announced{mine.num_bytes, mine.crc32c};
  pending.push_back(group_->start_send(at::tensor(announced, at::kLong), to_));
  wait();

  FirstFailure failure;
  std::optional<state::InputFile> source;
  failure.attempt([&] { source.emplace(folder_of(group_->rank()) / state::kPartFile); });
  int64_t longest = mine.num_bytes;
  for (Incoming& part : parts) {
    failure.attempt([&] { part.create(); });
    longest = std::max(longest, part.num_bytes());
  }
  for (int64_t offset = 0; offset < longest; offset += piece_bytes_) {
    for (Incoming& part : parts) {
      pending.push_back(part.start_piece(*group_, offset, piece_bytes_));
    }
    if (const int64_t left = mine.num_bytes - offset; left > 0) {
      const at::Tensor piece = at::empty({std::min(left, piece_bytes_)}, at::kByte);
      failure.attempt([&] { source->read(offset, writable_bytes(piece)); });
      pending.push_back(group_->start_send(piece, to_));
    }
    wait();
    for (Incoming& part : parts) {
      failure.attempt([&] { part.write_piece(offset); });
    }
  }
  for (Incoming& part : parts) {
    failure.attempt([&] { part.finish(); });
  }
  failure.rethrow();
}

void PartReplicator::save(
    state::CheckpointStore& store, const state::CheckpointContents& contents, const std::string& failure) {
  const int64_t rank = coordinator_->rank();
  const bool is_first = machines_.is_first(rank);
  const fs::path folder = store.temporary_path(contents.step);
  state::FileIntegrity mine;
  try {
    coordinator_->all_succeed("local begin", [&] {
      if (!failure.empty()) {
        fail_runtime("{}", failure);
      }
      if (is_first) {
        store.begin(contents.step);
        if (!is_own_folder(store.root())) {
          fail_runtime("{}: another user may write to it", store.root().string());
        }
      }
    });
    coordinator_->all_succeed("local write", [&] {
      const state::PartName name{.rank = rank, .world_size = coordinator_->world_size()};
      mine = state::write_part(folder / state::folder_name(name), contents, rank);
    });
    coordinator_->all_succeed("local copy", [&] { copy(folder, mine); });
    coordinator_->all_succeed("local publish", [&] {
      if (is_first) {
        store.commit(contents.step);
      }
    });
  } catch (...) {
    if (is_first) {
      store.abandon(contents.step);
    }
    throw;
  }
  // Only now: until all have published the new checkpoint, some machines have only the previous one.
  coordinator_->all_succeed("local tidy", [&] {
    if (is_first) {
      const std::string problem = store.keep_latest(1, contents.step);
      if (!problem.empty()) {
        fail_runtime("{}", problem);
      }
    }
  });
}

}  // namespace lehr::train
