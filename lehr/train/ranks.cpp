#include "lehr/train/ranks.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <sstream>
#include <thread>

#include "lehr/base/error.h"
#include "lehr/base/log.h"
#include "lehr/data/packing.h"
#include "lehr/mesh/thread_transport.h"
#include "lehr/mesh/watchdog.h"
#include "lehr/nn/head.h"
#include "lehr/ops/attention/attention_sequences.h"
#include "lehr/shard/context_parallel.h"
#include "lehr/state/coordinator.h"
#include "lehr/train/future_tokens.h"

namespace lehr::train {

namespace {
// Adds the sequences' documents and padding as sequence_ends, while the host can read them without a sync.
Batch with_sequence_ends(Batch rows) {
  const auto find = [&](const char* name) {
    const auto found = rows.find(name);
    return found == rows.end() ? at::Tensor() : found->second;
  };
  if (at::Tensor ends = ops::sequence_ends(find("document_ids"), find("attention_mask")); ends.defined()) {
    rows["sequence_ends"] = std::move(ends);
  }
  return rows;
}

// Adds the positions of sequences that have none: a model would count those of a part from 0.
Batch with_positions(Batch rows) {
  const auto ids = rows.find("input_ids");
  if (ids != rows.end() && !rows.contains("position_ids")) {
    rows["position_ids"] =
        at::arange(ids->second.size(1), ids->second.options().dtype(at::kLong)).expand_as(ids->second);
  }
  return rows;
}

// Returns the padding value of a tensor of a batch. Zeros are padding in masks and token ids.
int64_t padding_of(const std::string& name) {
  return is_labels(name) ? nn::kIgnoreIndex : name == "document_ids" ? data::kNoDocument : 0;
}

// Sums numbers of the host in place.
template <class T>
void all_reduce(std::vector<T>& numbers, at::ScalarType type, const mesh::Group& group) {
  at::Tensor packed = at::from_blob(numbers.data(), {static_cast<int64_t>(numbers.size())}, type);
  group.all_reduce(packed);
}
}  // namespace

mesh::DeviceMeshParameters mesh_of(const ParallelismConfig& config, int64_t world_size) {
  mesh::DeviceMeshParameters mesh{
      .pipeline_parallel = config.pipeline_parallel_degree,
      .data_parallel_replicate = config.data_parallel_replicate_degree,
      .data_parallel_shard = 1,
      .context_parallel = config.context_parallel_degree,
      .tensor_parallel = config.tensor_parallel_degree,
      .expert_parallel = config.expert_parallel_degree};
  mesh.data_parallel_shard = config.data_parallel_shard_degree;
  if (config.data_parallel_shard_degree == -1) {
    mesh.data_parallel_shard = 1;
    const int64_t others = mesh.world_size();
    require(
        world_size % others == 0,
        "parallelism: the degrees other than data_parallel_shard take {} ranks ({}), which does not divide the {} that "
        "{} started; lehr launch -n {} starts as many",
        others,
        mesh.describe(),
        world_size,
        world_size == 1 ? "was" : "were",
        others);
    mesh.data_parallel_shard = world_size / others;
  }
  mesh.check(world_size);
  return mesh;
}

Ranks::Ranks(const ParallelismConfig& config, mesh::Transport* transport) {
  const auto mesh = mesh_of(config, transport != nullptr ? transport->world_size() : 1);
  const bool several = transport != nullptr && transport->world_size() > 1;
  if (!several && config.fsdp_cpu_offload) {
    own_transport_ = mesh::thread_transport(mesh::make_thread_hub(1), 0);
    transport = own_transport_.get();
  }
  if (several || own_transport_) {
    context_ = std::make_unique<mesh::DistributedContext>(mesh, *transport);
  }
}

RowShare Ranks::share(int64_t global) const {
  const int64_t ranks = data_parallel_size();
  require(
      global % ranks == 0,
      "training.global_batch_size: {} sequences cannot be shared evenly by the {} ranks of data_parallel_replicate x "
      "data_parallel_shard",
      global,
      ranks);
  const int64_t count = global / ranks;
  return {.global = global, .first = context_ ? context_->data_parallel_rank() * count : 0, .count = count};
}

Batch Ranks::positions_of(const Batch& rows) const {
  if (!context_) {
    return with_sequence_ends(rows);
  }
  const int64_t tp = context_->size(mesh::axis::tp);
  const int64_t cp = context_->size(mesh::axis::cp);
  Batch part;
  for (const auto& [name, tensor] : cp > 1 ? with_positions(rows) : rows) {
    part[name] = tensor;
    if (tensor.dim() < 2) {
      continue;
    }
    // Sequences that lehr verify compares have any length.
    if (const int64_t missing = (tp - tensor.size(1) % tp) % tp; missing > 0) {
      part[name] = at::constant_pad_nd(tensor, {0, missing}, padding_of(name));
    }
    if (cp > 1) {
      part[name] = shard::take_context_part(part[name], 1, context_->index(mesh::axis::cp), cp);
    }
  }
  return cp > 1 ? part : with_sequence_ends(std::move(part));  // ranks of cp attend to more than their own positions
}

void Ranks::sum_over_rows(std::vector<int64_t>& counts) const {
  if (context_) {
    all_reduce(counts, at::kLong, context_->group({mesh::axis::dp_replicate, mesh::axis::dp_shard}));
  }
}

void Ranks::sum_over_tokens(std::vector<double>& numbers) const {
  if (context_) {
    all_reduce(numbers, at::kDouble, context_->group({mesh::axis::dp_replicate, mesh::axis::fsdp}));
  }
}

void Ranks::sum_over_world(const at::Tensor& numbers) const {
  if (context_) {
    context_->world().all_reduce(numbers);
  }
}

at::Tensor Ranks::gather(const std::vector<double>& numbers) const {
  const at::Tensor rows = at::zeros({world_size(), std::ssize(numbers)}, at::kDouble);  // their sum has all rows
  rows[context_ ? context_->rank() : 0].copy_(at::tensor(numbers, at::kDouble));
  sum_over_world(rows);
  return rows;
}

bool Ranks::counts_tokens() const {
  return !context_ || context_->index(mesh::axis::tp) == 0;
}

bool Ranks::counts_rows() const {
  return counts_tokens() && (!context_ || context_->index(mesh::axis::cp) == 0);
}

bool Ranks::counts_process() const {
  return !context_ || context_->transport().name() != "threads" || context_->rank() == 0;
}

void Ranks::highest(std::vector<int64_t>& numbers) const {
  if (context_) {
    const at::Tensor packed = at::from_blob(numbers.data(), {static_cast<int64_t>(numbers.size())}, at::kLong);
    context_->world().all_reduce_max(packed);
  }
}

int64_t Ranks::of_main(int64_t number) const {
  if (context_) {
    const at::Tensor packed = at::full({1}, number, at::kLong);
    context_->world().broadcast(packed, 0);
    return packed.item<int64_t>();
  }
  return number;
}

bool Ranks::any(bool here) const {
  std::vector<int64_t> flag{here ? 1 : 0};
  highest(flag);
  return flag.front() != 0;
}

// Uses a key of the store, not a collective: the work may take longer than a collective's time limit.
std::string Ranks::from_main(const std::string& what, const std::function<std::string()>& make) const {
  if (!context_) {
    return make();
  }
  mesh::Transport& transport = context_->transport();
  const auto store = transport.store();
  const std::string key = fmt::format("{}/{}", what, transport.next_number());
  const auto put = [&](const std::string& text) { store->set(key, std::vector<uint8_t>(text.begin(), text.end())); };
  if (is_main()) {
    try {
      const std::string made = "+" + make();
      put(made);
      return made.substr(1);
    } catch (const std::exception& problem) {
      put(state::pack_failure(problem));
      throw;
    }
  }
  // The work may take long, but rank 0 must answer meanwhile.
  mesh::Watchdog* const watch = transport.watch();
  const auto start = std::chrono::steady_clock::now();
  for (int64_t asked = 0; !store->check({key});) {
    transport.check();
    if (const auto seconds = watch != nullptr ? watch->turn_to_ask(*store, key, start, asked) : std::nullopt) {
      const std::string waiting = fmt::format("after {} s of waiting for rank 0 ({})", *seconds, what);
      watch->expect_answers(*store, waiting);
      Logger().warn("{}: all ranks answer, so it is still at work, or a file system hangs", waiting);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const auto bytes = store->get(key);
  const std::string text(bytes.begin(), bytes.end());
  if (text.front() != '+') {
    state::throw_failure(text);
  }
  return text.substr(1);
}

void Ranks::set_doing(const std::string& doing) const {
  if (mesh::Watchdog* const watch = context_ ? context_->transport().watch() : nullptr) {
    watch->set_doing(doing);
  }
}

void Ranks::main_first(const std::function<void()>& work) const {
  from_main("main_first", [&] {
    work();
    return std::string();
  });
  if (!is_main()) {
    work();
  }
}

void Ranks::require_same(const std::string& what, const std::string& text) const {
  if (!context_) {
    return;
  }
  const std::string theirs = from_main("same", [&] { return text; });
  if (theirs == text) {
    return;
  }
  std::istringstream here(text), there(theirs);
  std::string mine, main;
  while (std::getline(here, mine) && std::getline(there, main) && mine == main) {
  }
  fail("{}: rank {} has '{}' where rank 0 has '{}'; start all ranks alike", what, context_->rank(), mine, main);
}

}  // namespace lehr::train
