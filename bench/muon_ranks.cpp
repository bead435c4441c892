// Times a step of Muon on fully sharded matrices, as one rank of a launcher, and prints one JSON line. The ideal is
// that every rank already holds whole matrices, a fair share of them, and sends nothing. The plain way gathers every
// gradient on every rank, which computes all matrices.
#include <chrono>
#include <cstdio>

#include "bench/bench_model.h"
#include "lehr/base/error.h"
#include "lehr/config/json.h"
#include "lehr/optim/muon.h"
#include "lehr/shard/whole_tensors.h"

namespace {
using namespace lehr;

struct Options {
  int64_t hidden = 512;
  int64_t layers = 4;
  int64_t steps = 5;
  void fields(FieldVisitor& v) {
    v.optional("hidden", hidden, "Hidden size; the FFN has three times as many channels.", positive());
    v.optional("layers", layers, "Number of layers: seven matrices each.", positive());
    v.optional("steps", steps, "Number of timed steps of each way, in turns.", positive());
  }
};

// The matrices of the layers of a Qwen3.
std::vector<optim::ParameterInfo> matrices(const Options& options) {
  const int64_t h = options.hidden;
  std::vector<optim::ParameterInfo> all;
  for (int64_t layer = 0; layer < options.layers; ++layer) {
    const std::vector<std::pair<const char*, std::vector<int64_t>>> shapes{
        {"q_proj", {2 * h, h}},
        {"k_proj", {h, h}},
        {"v_proj", {h, h}},
        {"o_proj", {h, 2 * h}},
        {"gate_proj", {3 * h, h}},
        {"up_proj", {3 * h, h}},
        {"down_proj", {h, 3 * h}}};
    for (const auto& shape : shapes) {
      all.push_back({.name = fmt::format("layers.{}.{}", layer, shape.first), .shape = shape.second});
    }
  }
  return all;
}

at::Tensor numbers_of(const optim::ParameterInfo& info, uint64_t seed) {
  at::Tensor whole = at::empty(info.shape, at::kFloat);
  nn::fill(whole, nn::Init::normal(0.02), seed, info.name, whole_box(info.shape), info.shape);
  return whole;
}

// Whole matrices, or this rank's rows.
std::vector<optim::NamedParameter> named(
    const std::vector<optim::ParameterInfo>& infos, const std::vector<nn::NamedParameter>& shards, bool whole) {
  std::vector<optim::NamedParameter> all;
  for (size_t i = 0; i < infos.size(); ++i) {
    const Box box = whole ? whole_box(infos[i].shape) : shards[i].parameter->box();
    optim::ShardSpan span;
    if (!whole) {
      span.shape = infos[i].shape;
      for (const Range& range : box) {
        span.offset.push_back(range.begin);
      }
    }
    all.push_back(
        {.name = infos[i].name,
         .value = narrow_to(numbers_of(infos[i], 1), box).clone(at::MemoryFormat::Contiguous),
         .grad = narrow_to(numbers_of(infos[i], 2), box).clone(at::MemoryFormat::Contiguous),
         .placement = std::move(span)});
  }
  return all;
}

template <class Work>
double seconds_of(const train::Ranks& ranks, const Work& work) {
  ranks.any(false);  // a barrier
  const auto begin = std::chrono::steady_clock::now();
  work();
  ranks.any(false);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void run(const Options& options, mesh::Transport& transport) {
  at::set_num_threads(1);
  const train::Ranks ranks(train::ParallelismConfig{}, &transport);
  require(ranks.world_size() > 1, "muon_ranks: start several ranks, as with lehr launch -n 2");
  mesh::DistributedContext& context = *ranks.context();
  const mesh::Group& group = context.group(mesh::axis::fsdp);
  const auto infos = matrices(options);
  std::vector<at::Tensor> slots(infos.size());
  std::vector<nn::NamedParameter> shards;
  for (size_t i = 0; i < infos.size(); ++i) {
    shards.push_back(
        {infos[i].name, std::make_shared<nn::Parameter>("weight", &slots[i], infos[i].shape, nn::Init::normal(0.02))});
    shards[i].parameter->lay_out(mesh::axis::fsdp, Placement::shard(0), group.rank(), group.size());
  }
  const optim::OptimizerConfig config{.name = optim::OptimizerKind::muon};
  const auto own = named(infos, shards, false), all = named(infos, shards, true);
  std::vector<optim::NamedParameter> fair;  // whole layers in turns
  for (size_t i = 0; i < all.size(); ++i) {
    if (static_cast<int64_t>(i) / 7 % group.size() == group.rank()) {
      fair.push_back(all[i]);
    }
  }
  require(
      options.layers % group.size() == 0,
      "muon_ranks: expected a number of layers that the {} ranks divide",
      group.size());
  optim::Muon ours(config, infos, std::make_shared<shard::MeshWholeTensors>(context, shards));
  optim::Muon ideal(config, infos), plain(config, infos);
  const auto gather_and_step = [&] {
    for (size_t i = 0; i < all.size(); ++i) {
      group.all_gather(all[i].grad, own[i].grad);
    }
    plain.step(all);
  };
  std::vector<double> our_seconds, ideal_seconds, plain_seconds;
  ours.step(own);
  gather_and_step();
  double difference = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const at::Tensor expected = narrow_to(all[i].value, shards[i].parameter->box());
    difference = std::max(difference, (own[i].value - expected).abs().max().item<double>());
  }
  require(difference < 1e-5, "muon_ranks: shards differ by {} from whole matrices after a step", difference);
  for (int64_t step = 0; step < options.steps; ++step) {
    ideal_seconds.push_back(seconds_of(ranks, [&] { ideal.step(fair); }));
    our_seconds.push_back(seconds_of(ranks, [&] { ours.step(own); }));
    plain_seconds.push_back(seconds_of(ranks, gather_and_step));
  }
  if (ranks.is_main()) {
    Node report = Node::make_table();
    report.set("ranks", Node(ranks.world_size()));
    report.set("ideal_s", bench::list_of(ideal_seconds));
    report.set("lehr_s", bench::list_of(our_seconds));
    report.set("plain_gather_s", bench::list_of(plain_seconds));
    std::puts(to_json(report).c_str());
  }
}
}  // namespace

int main(int argc, char** argv) {
  return bench::run_rank<Options>(argc, argv, run);
}
