#include "lehr/search/search.h"

#include <fmt/ranges.h>

#include <cstdint>
#include <fstream>
#include <span>
#include <utility>

#include "lehr/base/crc32c.h"
#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/base/log.h"
#include "lehr/base/progress.h"
#include "lehr/config/json.h"
#include "lehr/metric/throughput.h"
#include "lehr/pretrained/weights.h"
#include "lehr/search/model_space.h"
#include "lehr/state/weights.h"
#include "lehr/train/gpu_card.h"

namespace lehr::search {

namespace {
namespace fs = std::filesystem;

constexpr Stage kStages[] = {
    Stage::sort,
    Stage::library,
    Stage::stats,
    Stage::score,
    Stage::solve,
    Stage::realise,
    Stage::distil,
    Stage::report};
constexpr const char* kStagesFile = "stages.json";

// What measured times depend on: the GPU, or the CPU of this machine.
std::string name_of_device(at::Device device) {
  if (const auto card = train::find_card(device)) {
    return card->describe();
  }
  std::ifstream cpu("/proc/cpuinfo");
  for (std::string line; std::getline(cpu, line);) {
    if (line.starts_with("model name")) {
      return line.substr(line.find(':') + 1);
    }
  }
  return "";
}

// The whole space with the parts that its variants keep.
std::string text_of(const SearchSpace& space) {
  std::string text;
  for (const Place& place : alternatives(space)) {
    const prune::LayerKeeps& keeps = at(space, place).keeps;
    text += fmt::format(
        "{} {} {} {}",
        describe(space, place),
        fmt::join(keeps.kv_heads, " "),
        fmt::join(keeps.ffn_channels, " "),
        fmt::join(keeps.experts, " "));
    if (!keeps.shared_channels.empty()) {
      text += fmt::format(", shared {}", fmt::join(keeps.shared_channels, " "));
    }
    for (const auto& channels : keeps.expert_channels) {
      text += fmt::format(", {}", fmt::join(channels, " "));
    }
    text += ";";
  }
  return text;
}
}  // namespace

std::string text_of(const Choice& choice) {
  return fmt::format("attention {}, ffn {}", fmt::join(choice.attention, " "), fmt::join(choice.ffn, " "));
}

uint32_t checksum_of(const std::string& text) {
  return crc32c(std::as_bytes(std::span(text)));
}

std::string sentence(const ShadowPrice& price, const std::vector<Limit>& limits) {
  const CostKind kind = limits.at(price.budget).kind;
  return fmt::format(
      "{:.0f} % more {} ({}) would lower the sum of scores by {} per token",
      100 * price.share,
      name_of(kind),
      with_unit(kind, price.more),
      price.worth > 0 ? fmt::format("{:.3g}", price.worth) : "0");
}

const char* name_of(Stage stage) {
  switch (stage) {
    case Stage::sort:
      return "sort";
    case Stage::library:
      return "library";
    case Stage::stats:
      return "stats";
    case Stage::score:
      return "score";
    case Stage::solve:
      return "solve";
    case Stage::realise:
      return "realise";
    case Stage::distil:
      return "distil";
    case Stage::report:
      break;
  }
  return "report";
}

std::vector<std::string> stage_names() {
  std::vector<std::string> names;
  for (const Stage stage : kStages) {
    names.emplace_back(name_of(stage));
  }
  return names;
}

Search::Search(SearchConfig config, SearchEnvironment environment)
    : config_(std::move(config)),
      environment_(std::move(environment)),
      output_(config_.search.output),
      pieces_(environment_.teacher, environment_.families, environment_.device, environment_.dtype),
      teacher_identity_(fmt::format(
          "{} {:08x} {} {}",
          pretrained::weights_fingerprint(state::WeightReader(environment_.teacher)),
          checksum_of(read_file(environment_.teacher / "config.json")),
          at::toString(environment_.dtype),
          c10::DeviceTypeName(environment_.device.type(), /*lower_case=*/true))) {  // ranks differ in its index
  require(
      static_cast<bool>(environment_.data.validation),
      "search: the config has no held-out data to measure variants on; set data.validation_fraction or "
      "data.validation_path");
  config_.space = space_of_model(config_.space, pieces_);
  for (const int64_t window : config_.space.windows) {
    require(
        window < environment_.seq_len,
        "space.windows: {} tokens: the sequences by which variants are trained and measured have {} (training.seq_len), "
        "in which this window would hide nothing; use fewer tokens, or longer sequences",
        window,
        environment_.seq_len);
  }
}

descriptor::Workload Search::workload() const {
  return {
      .num_tokens = config_.workload.seq_len > 0 ? config_.workload.seq_len : environment_.seq_len,
      .num_sequences = config_.workload.num_sequences,
      .bytes_per_weight = config_.workload.bytes_per_weight,
      .bytes_per_cached = config_.workload.bytes_per_cached};
}

HeldOut Search::held_out() const {
  const auto rows = train::RowShare::all(std::min(environment_.rows_per_batch, config_.score.max_rows));
  return {.task = environment_.task, .open = [this, rows, most = config_.score.max_rows] {
            return environment_.data.validation(rows, most);
          }};
}

void Search::show(const std::string& what, int64_t done, int64_t all) {
  environment_.log.live(progress_text(what, done, all, metric::ThroughputMeter::steady_seconds() - stage_begin_));
}

// Everything that the results of a stage depend on, as text.
std::string Search::identity(Stage stage) const {
  std::string text = fmt::format(
      "{}, data {:016x}, {} sequences of {} tokens, {} per batch",
      teacher_identity_,
      environment_.data.fingerprint,
      config_.score.importance_rows,
      environment_.seq_len,
      environment_.rows_per_batch);
  if (stage == Stage::sort) {
    for (const prune::Kind kind : needed_scores(config_.space, pieces_.blocks())) {
      text += fmt::format(", {}", prune::name_of(kind));
    }
    return text;
  }
  const LocalDistillationConfig& local = config_.local_distillation;
  text += fmt::format(
      ", {}, {} sequences per step, {} steps, lr {}, weight decay {}, norm {}",
      text_of(*space_),
      environment_.rows_per_step,
      local.steps,
      local.lr,
      local.weight_decay,
      local.max_norm);
  if (stage == Stage::stats) {
    text += fmt::format(
        ", {} sequences of {} tokens, {} rounds, {} threads, prefill and decoding of each shape beside a reference, {}",
        workload().num_sequences,
        workload().num_tokens,
        config_.workload.rounds,
        at::get_num_threads(),
        name_of_device(environment_.device));
  }
  if (stage == Stage::realise || stage == Stage::distil) {
    text += ", " + text_of(results_.candidates.front().solution.choice);
  }
  if (stage == Stage::distil) {
    text += ", " + environment_.distillation;
  }
  return text;
}

bool Search::is_done(Stage stage) const {
  const fs::path file = path(kStagesFile);
  if (!fs::exists(file)) {
    return false;
  }
  const Node stages = parse_json_file(file);
  const Node* known = stages.find(name_of(stage));
  return known != nullptr && known->as_string() == identity(stage);
}

SolverLimits Search::solver_limits() const {
  return {.seconds = config_.solve.seconds, .relative_gap = config_.solve.gap};
}

// The folder of a result of the best candidate: another budget, or other settings, have another one.
fs::path Search::folder_of(Stage stage, const std::string& name) const {
  return path(fmt::format("{}-{:08x}", name, checksum_of(identity(stage))));
}

void Search::set_done(Stage stage) {
  const fs::path file = path(kStagesFile);
  Node stages = fs::exists(file) ? parse_json_file(file) : Node::make_table();
  stages.set(name_of(stage), Node(identity(stage)));
  write_file_atomically(file, to_json(stages, true) + "\n");
}

// Before a stage replaces its files, so that a search that is stopped there does not take them for whole ones.
void Search::set_not_done(Stage stage) {
  const fs::path file = path(kStagesFile);
  if (fs::exists(file)) {
    Node stages = parse_json_file(file);
    stages.erase(name_of(stage));
    write_file_atomically(file, to_json(stages, true) + "\n");
  }
}

const SearchResults& Search::run(Stage last) {
  check_budgets();
  if (environment_.ranks.is_main()) {
    lock_ = std::make_unique<train::RunLock>(output_);
  }
  for (const Stage stage : kStages) {
    environment_.ranks.set_doing(fmt::format("the stage {} of a search", name_of(stage)));
    if (environment_.enters) {
      environment_.enters(stage);
    }
    stage_begin_ = metric::ThroughputMeter::steady_seconds();
    done_before_ = false;
    run_stage(stage);
    environment_.log.end_live();
    results_.times.push_back(
        {.stage = stage,
         .seconds = metric::ThroughputMeter::steady_seconds() - stage_begin_,
         .done_before = done_before_});
    if (stage == last || results_.stopped) {
      break;
    }
  }
  results_.stopped = environment_.ranks.any(results_.stopped);  // none leaves before the main rank is done
  return results_;
}

void Search::run_stage(Stage stage) {
  const train::Ranks& ranks = environment_.ranks;
  switch (stage) {
    case Stage::sort:
      return ranks.main_first([&] { sort(); });  // the others read the files
    case Stage::library:
      return train_library();
    case Stage::stats:
      // Only the main rank uses them. The others may have another number of threads, and would measure times again.
      return ranks.main_first([&] { return ranks.is_main() ? measure_costs() : void(); });
    case Stage::score:
      return score();
    case Stage::solve:
      return ranks.is_main() ? solve() : help_to_solve();
    case Stage::realise:
      return ranks.is_main() ? realise() : void();
    case Stage::distil:
      return ranks.is_main() ? distil() : void();
    case Stage::report:
      return ranks.is_main() ? write_report() : void();
  }
}

}  // namespace lehr::search
