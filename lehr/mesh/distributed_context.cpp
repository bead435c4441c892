#include "lehr/mesh/distributed_context.h"

#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/mesh/watchdog.h"

namespace lehr::mesh {

int64_t DeviceMeshParameters::world_size() const {
  return pipeline_parallel * data_parallel_replicate * data_parallel_shard * context_parallel * tensor_parallel;
}

void DeviceMeshParameters::check(int64_t world_size) const {
  const std::pair<const char*, int64_t> degrees[] = {
      {"pipeline_parallel", pipeline_parallel},
      {"data_parallel_replicate", data_parallel_replicate},
      {"data_parallel_shard", data_parallel_shard},
      {"context_parallel", context_parallel},
      {"tensor_parallel", tensor_parallel},
      {"expert_parallel", expert_parallel}};
  for (const auto& [name, degree] : degrees) {
    require(degree >= 1, "parallelism.{}_degree: expected 1 or more, found {}", name, degree);
  }
  const int64_t expert_ranks = data_parallel_shard * context_parallel * tensor_parallel;
  require(
      expert_ranks % expert_parallel == 0,
      "parallelism.expert_parallel_degree: {} does not divide the {} ranks of data_parallel_shard ({}) x "
      "context_parallel ({}) x tensor_parallel ({}), which it takes its ranks from",
      expert_parallel,
      expert_ranks,
      data_parallel_shard,
      context_parallel,
      tensor_parallel);
  const auto* spread =
      std::find_if(std::begin(degrees), std::end(degrees), [](const auto& entry) { return entry.second > 1; });
  require(
      this->world_size() == world_size,
      "parallelism{}: the degrees ask for {} ranks ({}), and {} {} started; lehr launch -n {} starts as many",
      spread != std::end(degrees) ? fmt::format(".{}_degree", spread->first) : "",
      this->world_size(),
      describe(),
      world_size,
      world_size == 1 ? "was" : "were",
      this->world_size());
}

std::string DeviceMeshParameters::describe() const {
  std::vector<std::string> parts;
  const std::pair<std::string, int64_t> degrees[] = {
      {axis::pp, pipeline_parallel},
      {axis::dp_replicate, data_parallel_replicate},
      {axis::dp_shard, data_parallel_shard},
      {axis::cp, context_parallel},
      {axis::tp, tensor_parallel},
      {axis::ep, expert_parallel}};
  for (const auto& [name, degree] : degrees) {
    if (degree > 1) {
      parts.push_back(fmt::format("{} {}", name, degree));
    }
  }
  return parts.empty() ? "one device" : fmt::format("{}", fmt::join(parts, " x "));
}

std::string DeviceMeshParameters::coordinates(int64_t rank) const {
  const std::pair<std::string, int64_t> degrees[] = {
      {axis::tp, tensor_parallel},
      {axis::cp, context_parallel},
      {axis::dp_shard, data_parallel_shard},
      {axis::dp_replicate, data_parallel_replicate},
      {axis::pp, pipeline_parallel}};
  std::vector<std::string> parts;
  int64_t rest = rank;
  for (const auto& [name, degree] : degrees) {
    if (degree > 1) {
      parts.insert(parts.begin(), fmt::format("{} {}", name, rest % degree));
    }
    rest /= degree;
  }
  if (expert_parallel > 1) {
    parts.push_back(fmt::format("ep {}", rank % expert_parallel));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

DistributedContext::DistributedContext(const DeviceMeshParameters& parameters, Transport& transport)
    : parameters_(parameters), transport_(transport) {
  parameters_.check(transport.world_size());
  if (Watchdog* const watch = transport_.watch()) {
    // Captured by value: the watch outlives the context.
    watch->set_coordinates([parameters = parameters_](int64_t other) { return parameters.coordinates(other); });
  }
}

DistributedContext::~DistributedContext() = default;

// The axes of the domain that contains all of `axes`, slowest first; dp_shard and cp are merged if fsdp is among them.
std::vector<DistributedContext::Axis> DistributedContext::domain_of(const std::vector<std::string>& axes) const {
  const auto& p = parameters_;
  const Axis pp{axis::pp, p.pipeline_parallel};
  const Axis replicate{axis::dp_replicate, p.data_parallel_replicate};
  const int64_t sharded = p.data_parallel_shard * p.context_parallel;
  const std::vector<std::vector<Axis>> domains{
      {pp,
       replicate,
       {axis::dp_shard, p.data_parallel_shard},
       {axis::cp, p.context_parallel},
       {axis::tp, p.tensor_parallel}},
      {pp, replicate, {axis::fsdp, sharded}, {axis::tp, p.tensor_parallel}},
      {pp,
       replicate,
       {axis::ep_shard, sharded * p.tensor_parallel / p.expert_parallel},
       {axis::ep, p.expert_parallel}}};
  for (const auto& domain : domains) {
    const bool has_all = std::all_of(axes.begin(), axes.end(), [&](const std::string& name) {
      return std::any_of(domain.begin(), domain.end(), [&](const Axis& axis) { return axis.name == name; });
    });
    if (has_all) {
      return domain;
    }
  }
  fail("mesh: no domain has the axes {} together", fmt::join(axes, ", "));
}

int64_t DistributedContext::size(const std::string& axis) const {
  for (const Axis& one : domain_of({axis})) {
    if (one.name == axis) {
      return one.size;
    }
  }
  return 1;
}

int64_t DistributedContext::index(const std::string& axis) const {
  const auto domain = domain_of({axis});
  int64_t rest = rank();
  for (auto one = domain.rbegin(); one != domain.rend(); ++one) {
    if (one->name == axis) {
      return rest % one->size;
    }
    rest /= one->size;
  }
  return 0;
}

const Group& DistributedContext::group(const std::vector<std::string>& axes) {
  const auto domain = domain_of(axes);
  std::vector<std::string> named;  // in the order of the domain
  std::vector<int64_t> ranks{0};   // of this rank's group, digit by digit
  int64_t stride = world_size();
  for (const Axis& one : domain) {
    stride /= one.size;
    const bool spans = std::find(axes.begin(), axes.end(), one.name) != axes.end();
    if (spans && one.size > 1) {
      named.push_back(one.name);
    }
    const int64_t mine = rank() / stride % one.size;
    std::vector<int64_t> longer;
    for (const int64_t base : ranks) {
      for (int64_t index = spans ? 0 : mine; index < (spans ? one.size : mine + 1); ++index) {
        longer.push_back(base + index * stride);
      }
    }
    ranks = std::move(longer);
  }
  // Groups of the same ranks are one group, whatever the names of their axes.
  const std::string key = fmt::format("{}", fmt::join(ranks, ","));
  auto& group = groups_[key];
  if (!group) {
    const std::string name = named.empty() ? "none" : fmt::format("{}", fmt::join(named, ","));
    auto backend = ranks.size() > 1 ? transport_.connect(name, ranks) : c10::intrusive_ptr<c10d::Backend>();
    group = std::make_unique<Group>(name, ranks, rank(), std::move(backend), transport_.watch());
  }
  return *group;
}

const Group& DistributedContext::world() {
  return group({axis::pp, axis::dp_replicate, axis::dp_shard, axis::cp, axis::tp});
}

void DistributedContext::connect_messages(const Group& group, const std::vector<Route>& routes) {
  if (!transport_.connects_by_messages()) {
    return;
  }
  for (const Route& route : routes) {
    const at::Tensor word = at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(transport_.device()));
    if (route.from == group.rank()) {
      group.start_send(word, route.to).wait();
    } else if (route.to == group.rank()) {
      group.start_receive(word, route.from).wait();
    }
  }
}

int64_t DistributedContext::data_parallel_size() const {
  return parameters_.data_parallel_replicate * parameters_.data_parallel_shard;
}

int64_t DistributedContext::data_parallel_rank() const {
  return index(axis::dp_replicate) * parameters_.data_parallel_shard + index(axis::dp_shard);
}

double DistributedContext::seconds_waited() const {
  double seconds = 0;
  for (const auto& [name, group] : groups_) {
    seconds += group->seconds_waited();
  }
  return seconds;
}

std::string DistributedContext::coordinates() const {
  return parameters_.coordinates(rank());
}

}  // namespace lehr::mesh
