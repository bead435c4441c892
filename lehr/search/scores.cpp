#include "lehr/search/scores.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <span>
#include <utility>

#include "lehr/base/crc32c.h"
#include "lehr/base/error.h"
#include "lehr/config/json.h"
#include "lehr/pretrained/model_folder.h"
#include "lehr/train/ranks.h"
#include "lehr/train/task.h"

namespace lehr::search {

namespace {
Node to_node(const std::string& key, const DivergenceSums& sums) {
  Node node = Node::make_table();
  node.set("key", Node(key));
  node.set("tokens", Node(sums.tokens));
  node.set("kl", Node(sums.kl));
  node.set("nll", Node(sums.nll));
  node.set("agreement", Node(sums.agreement));
  node.set("cosine", Node(sums.cosine));
  node.set("mse", Node(sums.mse));
  return node;
}

DivergenceSums from_node(const Node& node) {
  return {
      .tokens = node.at("tokens").as_int(),
      .kl = node.at("kl").as_double(),
      .nll = node.at("nll").as_double(),
      .agreement = node.at("agreement").as_double(),
      .cosine = node.at("cosine").as_double(),
      .mse = node.at("mse").as_double()};
}

uint32_t checksum(const at::Tensor& tensor) {
  const at::Tensor here = tensor.cpu().contiguous();
  return crc32c(std::as_bytes(std::span(static_cast<const char*>(here.const_data_ptr()), here.nbytes())));
}

// Identifies the content of a batch, regardless of its place in the data.
std::string key_of(const train::Batch& batch) {
  std::string key;
  for (const auto& [name, tensor] : batch) {
    key += fmt::format("{}{:08x}", key.empty() ? "" : " ", checksum(tensor));
  }
  return key;
}

std::string key_of(const Library& library, const Place& place) {
  const Variant& variant = at(library.space(), place);
  uint32_t weights = 0;
  if (const SubblockTensors* trained = library.trained(place); trained != nullptr) {
    for (const auto& [name, tensor] : *trained) {
      weights = weights * 31 + checksum(tensor);
    }
  }
  // The parts that a variant keeps, not only their number.
  std::string kept;
  for (const auto* list : {&variant.keeps.kv_heads, &variant.keeps.ffn_channels, &variant.keeps.experts}) {
    kept += fmt::format("{},", fmt::join(*list, " "));
  }
  for (const auto& channels : variant.keeps.expert_channels) {
    kept += fmt::format("{},", fmt::join(channels, " "));
  }
  kept += fmt::format("{}", fmt::join(variant.keeps.shared_channels, " "));
  const uint32_t parts = crc32c(std::as_bytes(std::span(kept)));
  return fmt::format("{}, parts {:08x}, weights {:08x}", describe(library.space(), place), parts, weights);
}

std::vector<Piece> layers_of(const Library& library, const Choice& choice) {
  std::vector<Piece> layers;
  for (int64_t layer = 0; layer < library.pieces().num_layers(); ++layer) {
    layers.push_back(library.layer(
        layer, choice.of(layer, pretrained::Subblock::attention), choice.of(layer, pretrained::Subblock::ffn)));
  }
  return layers;
}
}  // namespace

ScoreRecords::ScoreRecords(const std::filesystem::path& file, int64_t rank)
    : file_(
          rank == 0
              ? file
              : file.parent_path() / fmt::format("{}-{}{}", file.stem().string(), rank, file.extension().string())) {
  read_others(file);
  const std::string complete = read(file_);
  std::error_code error;
  if (const auto size = std::filesystem::file_size(file_, error); !error && size != complete.size()) {
    std::filesystem::resize_file(file_, complete.size());
  }
}

ScoreRecords ScoreRecords::of_all_ranks(const std::filesystem::path& file) {
  ScoreRecords records;
  records.read_others(file);
  return records;
}

// The files of all ranks but the own one; they may be growing.
void ScoreRecords::read_others(const std::filesystem::path& file) {
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  const std::string stem = file.stem().string(), ending = file.extension().string();
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool of_a_rank = name == file.filename() || (name.starts_with(stem + "-") && name.ends_with(ending));
    if (of_a_rank && name != file_.filename()) {
      read(entry.path());
    }
  }
}

// Returns the text without a last line that was cut off.
std::string ScoreRecords::read(const std::filesystem::path& file) {
  std::ifstream lines(file);
  std::string complete;
  for (std::string line; std::getline(lines, line) && !lines.eof();) {
    const Node node = parse_json(line, file.string());
    records_[node.at("key").as_string()] = from_node(node);
    complete += line + "\n";
  }
  return complete;
}

const DivergenceSums* ScoreRecords::find(const std::string& key) const {
  const auto found = records_.find(key);
  return found == records_.end() ? nullptr : &found->second;
}

void ScoreRecords::add(const std::string& key, const DivergenceSums& sums) {
  invariant(!file_.empty(), "scores: these records are only read");
  std::ofstream out(file_, std::ios::app);
  out << to_json(to_node(key, sums)) + "\n" << std::flush;
  if (!out) {
    fail_runtime("{}: cannot be written; is the disk full?", file_.string());
  }
  records_[key] = sums;
}

PrefixPass::PrefixPass(
    const Piece& embeddings, const std::vector<Piece>& layers, const Piece& head, const nn::ModelInputs& inputs)
    : layers_(layers), head_(head), inputs_(inputs) {
  inputs_of_layers_.push_back(run_piece(embeddings, inputs_, {}));
  for (const Piece& layer : layers_) {
    inputs_of_layers_.push_back(run(layer, inputs_of_layers_.back()));
  }
  output_ = run_piece(head_, inputs_, inputs_of_layers_.back());
}

at::Tensor PrefixPass::run(const Piece& piece, const at::Tensor& hidden_states) {
  ++layer_forwards_;
  return run_piece(piece, inputs_, hidden_states);
}

at::Tensor PrefixPass::with(int64_t layer, const Piece& piece) {
  at::Tensor hidden_states = run(piece, inputs_of_layers_.at(static_cast<size_t>(layer)));
  for (auto after = static_cast<size_t>(layer) + 1; after < layers_.size(); ++after) {
    hidden_states = run(layers_[after], hidden_states);
  }
  return run_piece(head_, inputs_, hidden_states);
}

namespace {
// The measurements of one batch, compared with the teacher.
class BatchScorer {
 public:
  // Opened once, if something has to be measured.
  struct Models {
    explicit Models(const Library& library, const Choice& base_choice)
        : embeddings(library.embeddings()),
          head(library.head()),
          teacher(layers_of(library, teacher_choice(library.space()))),
          base(
              base_choice == teacher_choice(library.space()) ? std::vector<Piece>() : layers_of(library, base_choice)) {
    }
    Piece embeddings, head;
    std::vector<Piece> teacher, base;  // an empty base is the teacher
  };

  BatchScorer(const Models& models, const Library& library, const HeldOut& data, const train::Batch& batch)
      : models_(models),
        local_(train::to_device(train::Ranks().positions_of(batch), library.pieces().device())),
        inputs_(data.task.build_forward_inputs(local_)),
        base_(models.embeddings, models.base.empty() ? models.teacher : models.base, models.head, inputs_),
        teacher_(base_.output()) {
    if (!models.base.empty()) {
      const PrefixPass teacher(models.embeddings, models.teacher, models.head, inputs_);
      teacher_ = teacher.output();
      layer_forwards_ = teacher.layer_forwards();
    }
  }

  DivergenceSums of_base() { return compare(base_.output()); }
  DivergenceSums with(int64_t layer, const Piece& piece) { return compare(base_.with(layer, piece)); }
  // With those of the base and the teacher.
  int64_t layer_forwards() const { return layer_forwards_ + base_.layer_forwards(); }

 private:
  DivergenceSums compare(const at::Tensor& hidden_states) {
    return divergence({*models_.head, teacher_}, {*models_.head, hidden_states}, local_.at("labels"));
  }

  const Models& models_;
  train::Batch local_;
  nn::ModelInputs inputs_;
  PrefixPass base_;
  at::Tensor teacher_;
  int64_t layer_forwards_ = 0;
};

std::string key_of(const Library& library, const Choice& choice) {
  std::string key;
  for (int64_t layer = 0; layer < library.pieces().num_layers(); ++layer) {
    for (const auto subblock : pretrained::kSubblocks) {
      if (const size_t variant = choice.of(layer, subblock); variant != 0) {
        key += key_of(library, Place{.layer = layer, .subblock = subblock, .variant = variant}) + "; ";
      }
    }
  }
  return key.empty() ? "teacher" : "in " + key;
}

// The base's layer with one variant.
Piece layer_with(const Library& library, Choice choice, const Place& place) {
  choice.of(place) = place.variant;
  return library.layer(
      place.layer,
      choice.of(place.layer, pretrained::Subblock::attention),
      choice.of(place.layer, pretrained::Subblock::ffn));
}
}  // namespace

SpaceScores score_space(
    const Library& library,
    const HeldOut& data,
    const std::string& identity,
    const Choice& base,
    ScoreRecords& records,
    const std::function<void(int64_t done, int64_t all)>& progress,
    const WorkShare& share) {
  const at::NoGradGuard no_grad;
  SpaceScores scores{.base = base};
  std::vector<std::string> keys;
  for (const Place& place : all_variants(library.space())) {
    if (base.of(place.layer, place.subblock) != place.variant) {
      scores.of.emplace_back(place, DivergenceSums());
      keys.push_back(key_of(library, place));
    }
  }
  std::vector<train::Batch> batches;
  for (const auto stream = data.open(); auto batch = stream->next();) {
    batches.push_back(std::move(*batch));
  }
  const std::string of_base = identity + ", " + key_of(library, base);
  keys.emplace_back("itself");
  std::vector<std::string> of_batches;
  // Of all measurements, not only of the missing ones, so that ranks agree on who does which.
  const auto is_own = [&](size_t batch, size_t key) {
    return share.has(
        static_cast<int64_t>(batch * keys.size() + key), static_cast<int64_t>(batches.size() * keys.size()));
  };
  int64_t all = 0, done = 0;  // of the missing measurements
  for (size_t batch = 0; batch < batches.size(); ++batch) {
    of_batches.push_back(of_base + ", batch " + key_of(batches[batch]) + ", ");
    for (size_t key = 0; key < keys.size(); ++key) {
      all += is_own(batch, key) && records.find(of_batches.back() + keys[key]) == nullptr ? 1 : 0;
    }
  }
  std::optional<BatchScorer::Models> models;
  for (size_t batch = 0; batch < batches.size(); ++batch) {
    std::optional<BatchScorer> scorer;
    const std::string& of_batch = of_batches[batch];
    const auto record = [&](size_t index, const std::function<DivergenceSums(BatchScorer&)>& measured) {
      const std::string key = of_batch + keys[index];
      if (is_own(batch, index) && records.find(key) == nullptr) {
        if (!models) {
          models.emplace(library, base);
        }
        if (!scorer) {
          scorer.emplace(*models, library, data, batches[batch]);
        }
        records.add(key, measured(*scorer));
        scores.layer_forwards_without_reuse += library.pieces().num_layers();
        progress(++done, all);
      }
      const DivergenceSums* known = records.find(key);
      scores.missing += known == nullptr ? 1 : 0;
      return known == nullptr ? DivergenceSums() : *known;  // another rank's
    };
    scores.of_base += record(scores.of.size(), [](BatchScorer& one) { return one.of_base(); });
    for (size_t i = 0; i < scores.of.size(); ++i) {
      const Place& place = scores.of[i].first;
      scores.of[i].second +=
          record(i, [&](BatchScorer& one) { return one.with(place.layer, layer_with(library, base, place)); });
    }
    scores.layer_forwards += scorer ? scorer->layer_forwards() : 0;
  }
  require(
      scores.of_base.tokens > 0 || scores.missing > 0 || share.ranks > 1,
      "search: the held-out data has no token with a label to measure variants on; set data.validation_fraction or "
      "data.validation_path");
  return scores;
}

namespace {
// Compares a model with the teacher on all batches. `student` maps a batch's inputs to its prediction.
DivergenceSums compare(
    const Library& library,
    const HeldOut& data,
    const std::function<Prediction(const nn::ModelInputs& inputs, const Piece& embeddings, const Piece& head)>&
        student) {
  const at::NoGradGuard no_grad;
  const Piece embeddings = library.embeddings(), head = library.head();
  const std::vector<Piece> layers = layers_of(library, teacher_choice(library.space()));
  DivergenceSums sums;
  for (const auto stream = data.open(); const auto batch = stream->next();) {
    const train::Batch local = train::to_device(train::Ranks().positions_of(*batch), library.pieces().device());
    nn::ModelInputs inputs = data.task.build_forward_inputs(local);
    inputs.labels = at::Tensor();
    const PrefixPass teacher(embeddings, layers, head, inputs);
    sums += divergence({*head, teacher.output()}, student(inputs, embeddings, head), local.at("labels"));
  }
  return sums;
}
}  // namespace

DivergenceSums measure(const Library& library, const HeldOut& data, const Choice& choice) {
  const std::vector<Piece> layers = layers_of(library, choice);
  return compare(library, data, [&](const nn::ModelInputs& inputs, const Piece& embeddings, const Piece& head) {
    return Prediction{*head, PrefixPass(embeddings, layers, head, inputs).output()};
  });
}

DivergenceSums measure_folder(
    const Library& library,
    const HeldOut& data,
    const std::filesystem::path& folder,
    const descriptor::ModelFamilies& families) {
  const auto model =
      pretrained::ModelFolder::open(folder, families).load(library.pieces().device(), library.pieces().dtype());
  return compare(library, data, [&](const nn::ModelInputs& inputs, const Piece&, const Piece&) {
    return Prediction{*model, model->forward(inputs).hidden_states};
  });
}

}  // namespace lehr::search
