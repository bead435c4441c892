#include "lehr/plan/search.h"

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>

#include "lehr/base/error.h"
#include "lehr/nn/moe.h"
#include "lehr/pipeline/check_program.h"
#include "lehr/pipeline/communication.h"
#include "lehr/plan/equal_layers.h"
#include "lehr/plan/mesh_stages.h"
#include "lehr/plan/search_space.h"
#include "lehr/plan/step_time.h"

namespace lehr::plan {

namespace {
constexpr size_t kSpare = 4;    // extra meshes, in case the full plan of one does not fit,
constexpr size_t kPerMesh = 4;  // and ways to use each

struct Found {
  MeshPoint point;
  Trade trade;
  pipeline::ScheduleOptions schedule;
  double seconds = kNever;
};

class Search {
 public:
  Search(const train::TrainConfig& config, const train::TrainSpec& spec, const Machine& machine, size_t best)
      : config_(config), spec_(spec), machine_(machine), best_(best), stages_(config, spec, machine) {
    args_ = spec.build.model_args(config, spec.family, *data::load_tokenizer("byte", "tokenizer.path"));
    require_equal_layers(config, spec, *args_);
    result.window_difference = difference_of_windows(*args_, config.training.seq_len);
    const auto model = args_->build({});
    num_layers_ = model->num_local_layers();
    stages_.set_layers(num_layers_);
    for (const nn::MoELayerImpl* layer : nn::moe_layers(*model)) {
      num_experts_ = layer->num_experts();
    }
  }

  const std::string& why_not() const { return stages_.why_not; }
  int64_t num_layers() const { return num_layers_; }
  int64_t num_experts() const { return num_experts_; }

  void run(const std::vector<MeshPoint>& points, const PlanProgress& progress) {
    std::vector<std::pair<double, const MeshPoint*>> order;
    for (const MeshPoint& point : points) {
      const double least = stages_.least_seconds(point);
      if (least < kNever) {
        order.emplace_back(least, &point);
      }
    }
    result.meshes = static_cast<int64_t>(order.size());
    std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    int64_t done = 0;
    const auto told = [&] {
      if (progress) {
        progress("meshes", done, result.meshes);
      }
    };
    told();
    // In the order of the lower bounds, so that the first hopeless mesh ends the search.
    for (const auto& [least, point] : order) {
      if (least >= cutoff_) {
        break;
      }
      try_point(*point);
      ++done;
      told();
    }
    result.layouts = stages_.layouts();
  }

  /// Returns the candidates of each mesh, best first.
  std::vector<std::vector<Found>> found() const {
    std::vector<std::vector<Found>> all;
    for (const auto& [mesh, ways] : by_mesh_) {
      all.push_back(ways);
    }
    std::stable_sort(
        all.begin(), all.end(), [](const auto& a, const auto& b) { return a.front().seconds < b.front().seconds; });
    return all;
  }

  SearchResult result;

 private:
  struct TimedProgram {
    pipeline::Program program;
    std::vector<int64_t> forwards;  // peak number of live forwards, by rank
  };
  using MeshKey = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>;
  static MeshKey key_of(const mesh::DeviceMeshParameters& m) {
    return {
        m.pipeline_parallel,
        m.data_parallel_replicate,
        m.data_parallel_shard,
        m.context_parallel,
        m.tensor_parallel,
        m.expert_parallel};
  }
  void remember(const Found& one) {
    std::vector<Found>& ways = by_mesh_[key_of(one.point.mesh)];
    const auto slower = [&](const Found& other) { return other.seconds > one.seconds; };
    ways.insert(std::find_if(ways.begin(), ways.end(), slower), one);
    ways.resize(std::min(ways.size(), kPerMesh));
    if (by_mesh_.size() >= best_ + kSpare) {
      std::vector<double> seconds;
      for (const auto& [mesh, known] : by_mesh_) {
        seconds.push_back(known.front().seconds);
      }
      const auto last = seconds.begin() + static_cast<int64_t>(best_ + kSpare - 1);
      std::nth_element(seconds.begin(), last, seconds.end());
      cutoff_ = *last;
    }
  }

  // Returns whether a step takes at least as long with `other` as with `one`, which all_trades() lists before it.
  static bool costs_more(const std::string& other, const std::string& one) {
    return !(one == "2" && other == "op");  // all of every second layer, or half of every layer: either may be faster
  }

  void try_point(const MeshPoint& point) {
    using shard::ReshardPolicy;
    const auto schedules = all_schedules_of(point, num_layers_);
    // The first checkpointing with which a schedule fitted or was too slow; all_trades() lists the least recomputation
    // first.
    std::map<std::tuple<size_t, ReshardPolicy, bool>, std::string> enough;
    for (const Trade& trade : all_trades(point)) {
      std::map<StageShape, PlannedStage> planned;
      for (size_t i = 0; i < schedules.size(); ++i) {
        const auto found = enough.find({i, trade.reshard, trade.reduce_each});
        if (found != enough.end() && costs_more(trade.checkpointing, found->second)) {
          continue;
        }
        if (try_schedule({point, trade, schedules[i]}, planned)) {
          // Memory need not be saved by "always", which all-gathers more often, or by a reduction for each micro-batch.
          const bool gathers = trade.reshard == ReshardPolicy::all_but_last;
          for (const ReshardPolicy policy : {trade.reshard, gathers ? ReshardPolicy::always : trade.reshard}) {
            for (const bool reduce_each : {trade.reduce_each, true}) {
              enough.emplace(std::tuple(i, policy, reduce_each), trade.checkpointing);
            }
          }
        }
      }
    }
  }

  // Returns false if the step does not fit or is not legal; true if it fits, or is too slow to be of interest.
  bool try_schedule(Found one, std::map<StageShape, PlannedStage>& planned) {
    const auto& mesh = one.point.mesh;
    const auto placement = pipeline::place_stages(
        pipeline::schedule_info(one.schedule.schedule).placement,
        mesh.pipeline_parallel,
        one.schedule.num_stages_per_rank);
    const auto num_stages = static_cast<int64_t>(placement.size());
    std::vector<const PlannedStage*> stages;
    const auto& p = config_.parallelism;
    const bool cut = mesh.pipeline_parallel > 1;
    const auto chosen = cut ? chosen_layers(one, num_stages) : std::vector<int64_t>{};
    for (int64_t s = 0; s < num_stages; ++s) {
      StageShape shape{.first = s == 0, .last = s + 1 == num_stages};
      try {
        const auto [begin, end] = pipeline::distribute_layers_for_pipeline_stage(
            num_layers_,
            cut ? p.pipeline_parallel_first_stage_less_layers : 0,
            cut ? p.pipeline_parallel_last_stage_less_layers : 0,
            {.current_stage = s, .num_stages = num_stages, .layers_by_stage = chosen});
        shape.layers = end - begin;
      } catch (const Error&) {
        return false;  // a stage without layers
      }
      auto entry = planned.find(shape);
      if (entry == planned.end()) {
        const auto made = stages_.stage(one.point, one.trade, shape);
        if (!made) {
          return false;
        }
        entry = planned.emplace(shape, *made).first;
      }
      stages.push_back(&entry->second);
    }
    // Cheap checks first: a bound of the time, legality, a bound of the memory, then the simulation.
    const auto known = by_mesh_.find(key_of(mesh));
    const bool full = known != by_mesh_.end() && known->second.size() == kPerMesh;
    const double to_beat = std::min(cutoff_, full ? known->second.back().seconds : kNever);
    if (least_seconds(one, placement, stages) >= to_beat) {
      return true;  // too slow, whether it fits or not
    }
    if (!is_legal(one)) {
      return false;
    }
    const TimedProgram& timed = program_of(one.schedule);
    if (!could_fit(timed, stages)) {
      return false;
    }
    const StepPrediction step = predict_step(timed.program, stages, stages_.context(one.point, one.trade));
    ++result.simulated;
    one.seconds = step.timeline.makespan;
    double peak = 0;
    for (const RankMemory& rank : step.memory) {
      peak = std::max(peak, rank.peak.total());
    }
    if (peak > machine_.usable_bytes()) {
      remember_least(peak);
      return false;
    }
    if (one.seconds < to_beat) {
      remember(one);
    }
    return true;
  }

  const std::vector<int64_t>& chosen_layers(const Found& one, int64_t num_stages) {
    const auto [entry, is_new] = chosen_layers_.try_emplace({num_stages, one.trade.checkpointing});
    if (is_new) {
      const auto config = with_choices(config_, one.point, one.trade, one.schedule);
      entry->second = train::chosen_layers(config, *args_, num_stages);
    }
    return entry->second;
  }

  // Lower bound of a step's seconds: a rank's own work, plus the time until the first forward reaches it and the last
  // backward returns.
  double least_seconds(
      const Found& one, const std::vector<int64_t>& placement, const std::vector<const PlannedStage*>& stages) const {
    const bool splits_backward = pipeline::schedule_info(one.schedule.schedule).splits_backward;
    const auto m = static_cast<double>(one.point.microbatches);
    double longest = 0;
    double update = 0;
    struct OfRank {
      double work = 0;
      double way = -1;  // seconds until its first stage can begin
    };
    std::vector<OfRank> ranks(static_cast<size_t>(one.point.mesh.pipeline_parallel));
    double so_far = 0;
    for (size_t s = 0; s < stages.size(); ++s) {
      const StageCost& cost = stages[s]->cost;
      auto& [work, way] = ranks[static_cast<size_t>(placement[s])];
      const double input = splits_backward ? cost.backward_input.seconds() : cost.backward.seconds();
      // Programs that split backwards may have whole backwards too.
      const double backward = splits_backward
                                  ? std::min(cost.backward.seconds(), input + cost.backward_weight.seconds())
                                  : cost.backward.seconds();
      work += m * (cost.forward.seconds() + backward);
      way = way < 0 ? so_far : way;
      so_far += cost.forward.seconds() + std::min(input, backward);
      update = std::max(update, cost.update());
      longest = std::max(longest, work + (splits_backward ? 0 : way));
    }
    return longest + update;
  }

  // Checks a lower bound of memory without a timeline: memory at rest, and the live forwards.
  bool could_fit(const TimedProgram& timed, const std::vector<const PlannedStage*>& stages) {
    const auto& placement = timed.program.rank_of_stage;
    std::vector<double> rest(timed.forwards.size());
    std::vector<double> kept(timed.forwards.size(), kNever);
    for (size_t s = 0; s < stages.size(); ++s) {
      const auto rank = static_cast<size_t>(placement[s]);
      rest[rank] += static_cast<double>(stages[s]->measured.at_rest());
      kept[rank] = std::min(kept[rank], static_cast<double>(stages[s]->measured.forward.kept));
    }
    double most = 0;
    for (size_t rank = 0; rank < rest.size(); ++rank) {
      most = std::max(most, rest[rank] + static_cast<double>(timed.forwards[rank]) * kept[rank]);
    }
    if (most > machine_.usable_bytes()) {
      remember_least(most);
    }
    return most <= machine_.usable_bytes();
  }

  void remember_least(double bytes) {
    result.least_bytes = result.least_bytes == 0 ? bytes : std::min(result.least_bytes, bytes);
  }

  // Applies the checks of the trainer, once per mesh and micro-batch size.
  bool is_legal(const Found& one) {
    const auto key = std::make_tuple(key_of(one.point.mesh), one.point.rows);
    const auto [entry, is_new] = legal_.try_emplace(key, true);
    if (is_new) {
      try {
        resolve(with_choices(config_, one.point, one.trade, one.schedule), spec_);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::usage) {
          throw;
        }
        stages_.why_not = error.what();
        entry->second = false;
      }
    }
    return entry->second;
  }

  const TimedProgram& program_of(const pipeline::ScheduleOptions& options) {
    const auto key =
        std::make_tuple(options.schedule, options.num_ranks, options.num_stages_per_rank, options.num_microbatches);
    const auto [entry, is_new] = programs_.try_emplace(key);
    if (is_new) {
      const auto computations = pipeline::build_program(options);
      entry->second = {
          .program = pipeline::add_communication(computations),
          .forwards = pipeline::peak_forwards_until_input(computations)};
    }
    return entry->second;
  }

  const train::TrainConfig& config_;
  const train::TrainSpec& spec_;
  const Machine& machine_;
  size_t best_;
  int64_t num_layers_ = 0;
  int64_t num_experts_ = 0;
  std::unique_ptr<descriptor::ModelArgs> args_;
  std::map<std::pair<int64_t, std::string>, std::vector<int64_t>> chosen_layers_;  // by number of stages, checkpointing
  MeshStages stages_;
  std::map<MeshKey, std::vector<Found>> by_mesh_;  // the fastest ones of each, best first
  double cutoff_ = kNever;  // seconds of the slowest mesh that would still be returned, once enough are known
  std::map<std::tuple<MeshKey, int64_t>, bool> legal_;
  std::map<std::tuple<pipeline::Schedule, int64_t, int64_t, int64_t>, TimedProgram> programs_;
};
}  // namespace

SearchResult search_plans(
    const train::TrainConfig& config,
    const train::TrainSpec& spec,
    const Machine& machine,
    const SearchOptions& options) {
  require(options.devices >= 1, "search: expected at least 1 device, found {}; set --devices N", options.devices);
  require(
      config.training.global_batch_size > 0,
      "training.global_batch_size: a search compares meshes at one batch size, and -1 differs between meshes; set a "
      "number");
  require(
      !config.parallelism.pipeline_parallel_schedule_csv,
      "parallelism.pipeline_parallel_schedule_csv: a search chooses the schedule; remove the key");
  require(
      config.training.task != train::TaskKind::embedding,
      "training.task: the loss of \"embedding\" depends on the sequences of a micro-batch over all data-parallel ranks, "
      "which a search chooses; plan a single config, without --search");
  std::vector<int64_t> rows = options.microbatch_rows;
  if (rows.empty()) {
    rows.push_back(train::microbatch_rows(config));
  }
  for (const int64_t r : rows) {
    require(r >= 1, "search: expected micro-batches of at least 1 sequence, found {}", r);
  }
  Search search(config, spec, machine, options.best);
  const auto points = all_meshes(config, options.devices, search.num_layers(), search.num_experts(), rows);
  require(
      !points.empty(),
      "search: no mesh of {} devices divides training.global_batch_size = {} evenly into micro-batches of {} sequences",
      options.devices,
      config.training.global_batch_size,
      rows.front());
  search.run(points, options.progress);
  SearchResult result = std::move(search.result);
  require(
      result.meshes > 0,
      "search: no mesh of {} devices is legal; the last one tried: {}",
      options.devices,
      search.why_not());
  int64_t planned = 0;
  const auto found = search.found();
  const auto told = [&] {
    if (options.progress) {
      options.progress("plans of the best", planned, static_cast<int64_t>(std::min(options.best, found.size())));
    }
  };
  told();
  for (const std::vector<Found>& ways : found) {
    if (result.best.size() == options.best) {
      break;
    }
    // The fastest that fits: memory that was added up is not exact.
    for (const Found& one : ways) {
      train::TrainConfig chosen = with_choices(config, one.point, one.trade, one.schedule);
      Plan plan = make_plan(chosen, spec, machine, {.compare_schedules = false});
      if (plan.fits()) {
        result.best.push_back({std::move(chosen), std::move(plan)});
        break;
      }
    }
    planned = static_cast<int64_t>(result.best.size());
    told();
  }
  std::stable_sort(result.best.begin(), result.best.end(), [](const Candidate& a, const Candidate& b) {
    return a.plan.tokens_per_second > b.plan.tokens_per_second;
  });
  return result;
}

}  // namespace lehr::plan
