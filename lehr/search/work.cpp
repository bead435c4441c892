#include "lehr/search/work.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "lehr/base/error.h"
#include "lehr/base/log.h"
#include "lehr/meter/memory_meter.h"
#include "lehr/search/search.h"
#include "lehr/train/ranks.h"
#include "lehr/train/task.h"

namespace lehr::search {

namespace {
int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t bytes_of(const nn::Model& model) {
  int64_t bytes = 0;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    bytes += static_cast<int64_t>(parameter->value().nbytes());
  }
  return bytes;
}

struct Row {
  std::string stage, work;
  double flops = 0;
  double seconds = 0;
  double bytes = 0;
};

std::string table_of(const std::vector<Row>& rows) {
  size_t width = 0;
  for (const Row& row : rows) {
    width = std::max(width, row.work.size());
  }
  std::string text =
      fmt::format("{:<9} {:<{}}  {:>8} {:>9}  {:>9}\n", "stage", "work", width, "FLOPs", "time", "memory");
  for (const Row& row : rows) {
    text += fmt::format(
        "{:<9} {:<{}}  {:>8} {:>9}  {:>9}\n",
        row.stage,
        row.work,
        width,
        row.flops > 0 ? human_count(row.flops) : "",
        row.seconds > 0 ? human_seconds(row.seconds) : "",
        row.bytes > 0 ? human_bytes(row.bytes) : "");
  }
  return text;
}
}  // namespace

SearchWork work_of(const Search& search) {
  const SearchConfig& config = search.config();
  const DecoderPieces& pieces = search.pieces();
  const SearchSpace space = make_space(config.space, pieces.blocks(), equal_scores(pieces.blocks()));
  SearchWork work;
  work.layers = pieces.num_layers();
  const auto places = alternatives(space);
  work.variants = static_cast<int64_t>(places.size());
  work.trainable = static_cast<int64_t>(trainable_variants(space).size());
  work.importance_batches = ceil_div(
      config.score.importance_rows, std::min(search.environment().rows_per_batch, config.score.importance_rows));
  const int64_t rows = std::min(search.environment().rows_per_batch, config.score.max_rows);
  const int64_t known_rows = search.environment().data.num_validation_rows;
  const int64_t held_out_rows = known_rows > 0 ? std::min(config.score.max_rows, known_rows) : config.score.max_rows;
  work.held_out_batches = ceil_div(held_out_rows, rows);
  work.layer_forwards = work.layers;
  for (const Place& place : places) {
    work.layer_forwards += work.layers - place.layer;
  }
  work.layer_forwards_whole = work.layers * (work.variants + 1);
  work.candidates = config.solve.candidates;
  work.local_steps = config.local_distillation.steps;
  work.distillation_steps = config.distillation.steps;
  work.teacher_bytes =
      pieces.args().get_nparams_and_flops(1).num_parameters * static_cast<int64_t>(c10::elementSize(pieces.dtype()));
  if (work.local_steps > 0) {
    for (const Place& place : trainable_variants(space)) {
      // Weights of the layer; gradients and two moments of the sub-block, of which the layer is an upper bound.
      const auto layer = pieces.layer(place.layer, at(space, place).block);
      work.library_bytes += 4 * bytes_of(*layer);  // this layer is allocated only for a moment
    }
  }
  const auto hidden = pieces.args().decoder_form();
  if (hidden) {
    work.boundary_bytes = (work.layers + 2) * rows * search.environment().seq_len * hidden->hidden_size *
                          static_cast<int64_t>(c10::elementSize(pieces.dtype()));
  }
  return work;
}

namespace {
// What the library holds after its stage: a linear layer is kept as it was cut, too.
int64_t library_bytes(const Library& library, bool trains) {
  int64_t bytes = 0;
  for (const Place& place : trainable_variants(library.space())) {
    const prune::LayerKeeps& keeps = at(library.space(), place).keeps;
    const int64_t copies = (trains ? 1 : 0) + (keeps.linear_attention || keeps.linear_ffn ? 1 : 0);
    bytes += copies > 0 ? copies * library.bytes_as_stored(place) : 0;
  }
  return bytes;
}

// Variants whose measurement takes the most memory: the one with the most weights, and linear layers, which are
// multiplied out unless they were trained.
std::vector<Place> largest_variants(const Library& library, bool trained) {
  std::optional<Place> largest, attention, ffn;
  int64_t most = 0;
  for (const Place& place : trainable_variants(library.space())) {
    const prune::LayerKeeps& keeps = at(library.space(), place).keeps;
    attention = keeps.linear_attention && !attention ? place : attention;
    ffn = keeps.linear_ffn && !ffn ? place : ffn;
    if (const int64_t bytes = library.bytes_as_stored(place); bytes > most) {
      most = bytes;
      largest = place;
    }
  }
  std::vector<Place> places;
  for (const auto& place : {largest, trained ? std::nullopt : attention, trained ? std::nullopt : ffn}) {
    if (place && std::find(places.begin(), places.end(), *place) == places.end()) {
      places.push_back(*place);
    }
  }
  return places;
}

// The peak while one variant is measured as score_space does it, without what the library keeps.
int64_t peak_of_measurement(
    Library& library,
    bool trained,
    MemoryMeter& meter,
    const std::function<void(const std::optional<Place>& place)>& measure) {
  const std::vector<Place> places = largest_variants(library, trained);
  int64_t peak = 0, kept = 0;
  for (const Place& place : places) {
    if (trained) {
      library.set_trained(
          place, library.as_stored(place, library.tensors_of(*library.layer(place), place.layer, place.subblock)));
      kept += library.bytes_as_stored(place);
    }
    meter.reset_peak();
    measure(place);
    peak = std::max(peak, meter.peak() - kept);
    const prune::LayerKeeps& keeps = at(library.space(), place).keeps;
    kept += !trained && (keeps.linear_attention || keeps.linear_ffn) ? library.bytes_as_stored(place) : 0;
  }
  if (places.empty()) {
    meter.reset_peak();
    measure(std::nullopt);
    peak = meter.peak();
  }
  return peak;
}

// The teacher's parts and a batch of held-out data.
struct Loaded {
  Loaded(const Search& search, const SearchSpace& space, const train::Batch& batch, const HeldOut& data)
      : library(search.environment().teacher, search.environment().families, search.pieces(), space),
        labels(batch.at("labels")),
        inputs(data.task.build_forward_inputs(batch)),
        embeddings(library.embeddings()),
        head(library.head()) {
    for (int64_t layer = 0; layer < search.pieces().num_layers(); ++layer) {
      layers.push_back(library.layer(layer, 0, 0));
    }
  }
  PrefixPass pass() const { return {embeddings, layers, head, inputs}; }

  Library library;
  at::Tensor labels;
  nn::ModelInputs inputs;
  Piece embeddings, head;
  std::vector<Piece> layers;
};

void time_pass(const Loaded& loaded, PassCosts& costs) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  for (int64_t round = 0; round < 2; ++round) {  // the first one warms up
    const auto begin = Clock::now();
    const PrefixPass pass = loaded.pass();
    pass.output().flatten().narrow(0, 0, 1).cpu();  // waits for the device
    costs.layer = since(begin) / static_cast<double>(loaded.layers.size());
    const auto compared = Clock::now();
    divergence({*loaded.head, pass.output()}, {*loaded.head, pass.output()}, loaded.labels);
    costs.comparison = since(compared);
  }
}
}  // namespace

PassCosts measure_pass(const Search& search) {
  const at::NoGradGuard no_grad;
  const DecoderPieces& pieces = search.pieces();
  const SearchSpace space = make_space(search.config().space, pieces.blocks(), equal_scores(pieces.blocks()));
  const HeldOut data = search.held_out();
  const auto batch = data.open()->next();
  if (!batch) {
    fail("search: there is no held-out data to measure variants on; set data.validation_fraction");
  }
  const train::Batch local = train::to_device(train::Ranks().positions_of(*batch), pieces.device());
  PassCosts costs;
  std::optional<Loaded> loaded(std::in_place, search, space, local, data);
  time_pass(*loaded, costs);
  const bool trained = search.config().local_distillation.steps > 0;
  costs.library_bytes = library_bytes(loaded->library, trained);
  if (pieces.device().is_cpu()) {
    // The meter counts what is allocated after it, and would have lengthened the times: the parts are loaded once more.
    loaded.reset();
    MemoryMeter meter(at::kCPU);
    loaded.emplace(search, space, local, data);
    costs.bytes = peak_of_measurement(loaded->library, trained, meter, [&](const std::optional<Place>& place) {
      PrefixPass pass = loaded->pass();
      const Piece variant = place ? loaded->library.layer(*place) : nullptr;
      const at::Tensor found = pass.with(place ? place->layer : 0, variant);
      divergence({*loaded->head, pass.output()}, {*loaded->head, found}, loaded->labels);
    });
    loaded.reset();  // before the meter
  }
  return costs;
}

int64_t score_bytes(const SearchWork& work, const PassCosts& pass) {
  // Where nothing was metered: without activations, and without the logits of a chunk of tokens.
  return pass.library_bytes + (pass.bytes > 0 ? pass.bytes : work.teacher_bytes + work.boundary_bytes);
}

std::string describe_work(const Search& search) {
  const SearchWork work = work_of(search);
  const SearchConfig& config = search.config();
  const PassCosts timed = measure_pass(search);
  const auto rows = static_cast<double>(std::min(search.environment().rows_per_batch, config.score.max_rows));
  const auto tokens = rows * static_cast<double>(search.environment().seq_len);
  const auto layers = static_cast<double>(work.layers);
  // A forward is a third of a training step.
  const auto counts = search.pieces().args().get_nparams_and_flops(search.environment().seq_len);
  const double layer_flops = static_cast<double>(counts.causal_flops_per_token) / 3 * tokens / layers;
  const double steps_per_batch = static_cast<double>(search.environment().rows_per_step) / rows;
  const auto row =
      [&](const char* stage, const std::string& text, double layer_forwards, double comparisons, double bytes) {
        return Row{
            .stage = stage,
            .work = text,
            .flops = layer_forwards * layer_flops,
            .seconds = layer_forwards * timed.layer + comparisons * timed.comparison,
            .bytes = bytes};
      };
  const auto batches = static_cast<double>(work.held_out_batches);
  const auto variants = static_cast<double>(work.variants);
  const auto teacher = static_cast<double>(work.teacher_bytes);
  const double importance_rows =
      static_cast<double>(std::min(search.environment().rows_per_batch, config.score.importance_rows));
  const double score_forwards = batches * static_cast<double>(work.layer_forwards);
  const double candidate_forwards = 2 * layers * batches * static_cast<double>(work.candidates);
  const auto candidates = batches * static_cast<double>(work.candidates);
  const auto rounds = static_cast<double>(config.solve.rounds);
  const auto of_score = static_cast<double>(score_bytes(work, timed));
  std::vector<Row> table;
  table.push_back(
      row("sort",
          fmt::format("{} batches of training data", work.importance_batches),
          layers * static_cast<double>(work.importance_batches) * importance_rows / rows,
          0,
          teacher));
  table.push_back(
      row("library",
          fmt::format("{} variants, {} steps each", work.local_steps > 0 ? work.trainable : 0, work.local_steps),
          (layers + 3 * static_cast<double>(work.trainable)) * steps_per_batch * static_cast<double>(work.local_steps),
          0,
          teacher + static_cast<double>(work.library_bytes)));
  table.push_back({.stage = "stats", .work = "times of all shapes of sub-blocks"});
  table.push_back(
      row("score",
          fmt::format(
              "{} variants on {} batches: {} layer forwards each, {} without reuse",
              work.variants,
              work.held_out_batches,
              work.layer_forwards,
              work.layer_forwards_whole),
          score_forwards,
          batches * (variants + 1),
          of_score));
  table.push_back(
      row("solve",
          fmt::format(
              "{} candidates, measured whole; at most {} rounds of scores around the best", work.candidates, rounds),
          (1 + rounds) * candidate_forwards + rounds * (score_forwards + layers * batches),
          (1 + rounds) * candidates + rounds * batches * (variants + 1),
          of_score + teacher));
  table.push_back({.stage = "realise", .work = "the child's folder"});
  table.push_back(
      row("distil",
          fmt::format("{} steps of the child and its teacher", work.distillation_steps),
          4 * layers * steps_per_batch * static_cast<double>(work.distillation_steps),
          0,
          6 * teacher));
  return table_of(table) +
         "Times are those of one timed batch of the teacher, multiplied; \"layer forwards\" are per batch.\n";
}

}  // namespace lehr::search
