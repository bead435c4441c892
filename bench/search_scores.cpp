// Counts and times the layer forwards that measure all variants of a deep model with random weights: with the hidden
// states before a replaced layer kept (lehr search), and from the embeddings. Variants are sub-blocks, as in a search,
// or whole layers, of which there is one per pair of sub-blocks (arXiv 2411.19146). Prints one JSON line per way.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>

#include "bench/bench_model.h"
#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/config/json.h"
#include "lehr/pretrained/weights.h"
#include "lehr/search/model_space.h"
#include "lehr/search/scores.h"
#include "lehr/state/safetensors_writer.h"

namespace {
using namespace lehr;
using search::Choice;
using search::DivergenceSums;
using search::Piece;

struct Options {
  int64_t layers = 32;
  int64_t hidden_size = 256;
  int64_t seq_len = 256;
  int64_t rows = 2;
  void fields(FieldVisitor& v) {
    v.optional("layers", layers, "Layers of the model.", positive());
    v.optional("hidden_size", hidden_size, "Width of the model, a multiple of 64.", positive());
    v.optional("seq_len", seq_len, "Tokens of a sequence.", positive());
    v.optional("rows", rows, "Sequences on which each variant is measured.", positive());
  }
};

// A folder that is removed with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() : path_(std::filesystem::temp_directory_path() / fmt::format("lehr-search-scores-{}", ::getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// One KV head, so that there are two variants of the attention: the teacher's and none.
void write_teacher(const std::filesystem::path& folder, const Options& options) {
  write_file_atomically(
      folder / "config.json",
      fmt::format(
          R"({{"model_type": "qwen3", "vocab_size": 257, "hidden_size": {0}, "intermediate_size": {1},
  "num_hidden_layers": {2}, "num_attention_heads": {3}, "num_key_value_heads": 1, "head_dim": 64,
  "max_position_embeddings": {4}, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": true}})",
          options.hidden_size,
          3 * options.hidden_size,
          options.layers,
          options.hidden_size / 64,
          options.seq_len));
  const auto args = bench::families().from_hf_folder(folder);
  const auto model = args->build({});
  nn::materialize(*model, at::kCPU, at::kFloat);
  model->reset_parameters({.seed = 1});
  state::save_safetensors(
      folder / "model.safetensors",
      pretrained::stored_tensors(*model, args->state_map(descriptor::ExpertLayout::per_expert)));
}

// One batch of arbitrary tokens.
class OneBatch : public train::BatchStream {
 public:
  explicit OneBatch(const Options& options) : options_(options) {}
  std::optional<train::Batch> next() override {
    if (done_) {
      return std::nullopt;
    }
    done_ = true;
    const int64_t tokens = options_.seq_len + 1;
    const at::Tensor ids = (at::arange(options_.rows * tokens) * 7919 % 257).view({options_.rows, tokens});
    return train::Batch{
        {"input_ids", ids.narrow(1, 0, options_.seq_len).contiguous()},
        {"labels", ids.narrow(1, 1, options_.seq_len).contiguous()},
        {"position_ids", at::arange(options_.seq_len).expand({options_.rows, options_.seq_len}).contiguous()}};
  }

 private:
  const Options& options_;
  bool done_ = false;
};

// What a way measured.
struct Measured {
  std::vector<DivergenceSums> of;
  int64_t layer_forwards = 0;
  double seconds = 0;
};

void print(const char* variants, bool reuses, const Measured& measured) {
  Node line = Node::make_table();
  line.set("variants", Node(std::string(variants)));
  line.set("reuse", Node(reuses));
  line.set("measurements", Node(static_cast<int64_t>(measured.of.size())));
  line.set("layer_forwards", Node(measured.layer_forwards));
  line.set("seconds", Node(measured.seconds));
  std::puts(to_json(line).c_str());
  std::fflush(stdout);
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Measures layers in place of the teacher's, each given by its number and its variants (attention, ffn).
class Ways {
 public:
  Ways(const search::Library& library, const search::HeldOut& data) : library_(library), data_(data) {}

  Measured of_search(const std::filesystem::path& folder) const {
    Measured measured;
    search::ScoreRecords records(folder / "scores.jsonl");
    const double begin = seconds();
    const search::SpaceScores scores = search::score_space(
        library_, data_, "bench", search::teacher_choice(library_.space()), records, [](int64_t, int64_t) {});
    measured.seconds = seconds() - begin;
    measured.layer_forwards = scores.layer_forwards;
    for (const auto& [place, sums] : scores.of) {
      measured.of.push_back(sums);
    }
    return measured;
  }

  struct Layer {
    int64_t index;
    size_t attention, ffn;
  };

  Measured of_layers(const std::vector<Layer>& wanted, bool reuse) const {
    const at::NoGradGuard no_grad;
    Measured measured;
    const double begin = seconds();
    const Piece embeddings = library_.embeddings(), head = library_.head();
    std::vector<Piece> layers;
    for (int64_t layer = 0; layer < library_.pieces().num_layers(); ++layer) {
      layers.push_back(library_.layer(layer, 0, 0));
    }
    const auto batch = data_.open()->next();
    nn::ModelInputs inputs = data_.task.build_forward_inputs(*batch);
    inputs.labels = at::Tensor();
    search::PrefixPass teacher(embeddings, layers, head, inputs);
    for (const Layer& one : wanted) {
      const Piece piece = library_.layer(one.index, one.attention, one.ffn);
      at::Tensor hidden_states;
      if (reuse) {
        hidden_states = teacher.with(one.index, piece);
      } else {
        const Piece own = std::exchange(layers[static_cast<size_t>(one.index)], piece);
        const search::PrefixPass whole(embeddings, layers, head, inputs);
        layers[static_cast<size_t>(one.index)] = own;
        hidden_states = whole.output();
        measured.layer_forwards += whole.layer_forwards();
      }
      measured.of.push_back(search::divergence({*head, teacher.output()}, {*head, hidden_states}, batch->at("labels")));
    }
    measured.layer_forwards += teacher.layer_forwards();
    measured.seconds = seconds() - begin;
    return measured;
  }

  // All variants of sub-blocks, each alone; or all pairs of them.
  std::vector<Layer> subblocks() const {
    std::vector<Layer> layers;
    for (const search::Place& place : search::alternatives(library_.space())) {
      const bool attention = place.subblock == pretrained::Subblock::attention;
      layers.push_back({place.layer, attention ? place.variant : 0, attention ? 0 : place.variant});
    }
    return layers;
  }
  std::vector<Layer> pairs() const {
    std::vector<Layer> layers;
    for (size_t layer = 0; layer < library_.space().size(); ++layer) {
      const search::LayerSpace& variants = library_.space()[layer];
      for (size_t i = 1; i < variants.attention.size() * variants.ffn.size(); ++i) {
        layers.push_back({static_cast<int64_t>(layer), i / variants.ffn.size(), i % variants.ffn.size()});
      }
    }
    return layers;
  }

 private:
  const search::Library& library_;
  const search::HeldOut& data_;
};

void run(const Options& options) {
  require(options.hidden_size % 64 == 0, "hidden_size: expected a multiple of 64, found {}", options.hidden_size);
  const TemporaryFolder folder;
  write_teacher(folder.path(), options);
  const auto families = bench::families();
  const search::DecoderPieces pieces(folder.path(), families, at::kCPU, at::kFloat);
  search::SpaceConfig space;  // two variants of the attention, and six of the feed-forward block
  space.attention_linear = space.ffn_linear = false;
  const search::SearchSpace variants =
      search::make_space(search::space_of_model(space, pieces), pieces.blocks(), search::equal_scores(pieces.blocks()));
  const search::Library library(folder.path(), families, pieces, variants);
  const train::CausalLMTask task;
  const search::HeldOut data{.task = task, .open = [&] { return std::make_unique<OneBatch>(options); }};
  const Ways ways(library, data);
  ways.of_layers({}, true);  // warms up
  const Measured found = ways.of_search(folder.path()), whole = ways.of_layers(ways.subblocks(), false);
  require(
      found.of == whole.of, "search_scores: a run from the replaced layer has other sums than one of the whole model");
  print("sub-blocks", true, found);
  print("sub-blocks", false, whole);
  print("layers", true, ways.of_layers(ways.pairs(), true));
  print("layers", false, ways.of_layers(ways.pairs(), false));
}
}  // namespace

int main(int argc, char** argv) {
  return bench::run_program<Options>(argc, argv, run);
}
