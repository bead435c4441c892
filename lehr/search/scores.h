// Replace-one scores: each variant is put into the teacher, alone, and the whole model is measured on held-out text.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lehr/search/divergence.h"
#include "lehr/search/library.h"
#include "lehr/search/work_share.h"
#include "lehr/train/batches.h"
#include "lehr/train/task.h"

namespace lehr::search {

/// The measurements of every variant, with keys that identify their inputs: variant, weights and batch. Each is
/// appended to a file as soon as it exists, so a search that was stopped continues, and one with a larger space
/// measures only what is new.
///
/// Several ranks write a file each, "scores.jsonl", "scores-1.jsonl", ..., and read all of them.
class ScoreRecords {
 public:
  /// Reads `file` and those beside it; an incomplete last line is ignored. Rank `rank` adds to its own.
  explicit ScoreRecords(const std::filesystem::path& file, int64_t rank = 0);
  /// Reads the same files, which may be growing, and changes none of them: nothing can be added.
  static ScoreRecords of_all_ranks(const std::filesystem::path& file);

  const DivergenceSums* find(const std::string& key) const;
  void add(const std::string& key, const DivergenceSums& sums);
  size_t size() const { return records_.size(); }

 private:
  ScoreRecords() = default;
  std::string read(const std::filesystem::path& file);
  void read_others(const std::filesystem::path& file);

  std::filesystem::path file_;  // empty: nothing can be added
  std::map<std::string, DivergenceSums> records_;
};

/// One forward of a batch, with the hidden states before each layer: the prefixes that candidates share.
class PrefixPass {
 public:
  /// `layers` are those of the model, in order.
  PrefixPass(
      const Piece& embeddings, const std::vector<Piece>& layers, const Piece& head, const nn::ModelInputs& inputs);

  /// Returns the hidden states (B, T, H) after the final norm of the model in which `piece` stands in for the layer.
  at::Tensor with(int64_t layer, const Piece& piece);
  /// Returns the model's own hidden states after the final norm.
  const at::Tensor& output() const { return output_; }
  /// Number of layers that ran so far.
  int64_t layer_forwards() const { return layer_forwards_; }

 private:
  at::Tensor run(const Piece& piece, const at::Tensor& hidden_states);

  const std::vector<Piece>& layers_;
  const Piece& head_;
  const nn::ModelInputs& inputs_;
  std::vector<at::Tensor> inputs_of_layers_;
  at::Tensor output_;
  int64_t layer_forwards_ = 0;
};

/// The data of a measurement.
struct HeldOut {
  const train::TrainTask& task;
  std::function<std::unique_ptr<train::BatchStream>()> open;  ///< The same batches each time.
};

/// The scores of a space around one of its models: sums over all batches, compared with the teacher.
struct SpaceScores {
  Choice base;                                       ///< The model in which variants were replaced.
  DivergenceSums of_base;                            ///< If it is the teacher, the divergences are 0.
  std::vector<std::pair<Place, DivergenceSums>> of;  ///< Every variant that is not the base's own, layer by layer.
  int64_t missing = 0;                               ///< Measurements of other ranks that the records lack.
  int64_t layer_forwards = 0;                        ///< In this call; 0 if all records existed.
  int64_t layer_forwards_without_reuse = 0;          ///< If each candidate had run from the embeddings.
};

/// Measures the variants that `records` lacks, each alone in place of the base's own. A batch is measured for all of
/// them before the next one, so the memory besides teacher, base and one layer is that of the hidden states of one
/// batch, once per layer. `identity` identifies the teacher. `progress` gets the number of measurements done, and of
/// all.
///
/// One of several ranks measures only its `share`: then the sums are those of the measurements that `records` has, and
/// `missing` counts the others.
SpaceScores score_space(
    const Library& library,
    const HeldOut& data,
    const std::string& identity,
    const Choice& base,
    ScoreRecords& records,
    const std::function<void(int64_t done, int64_t all)>& progress,
    const WorkShare& share = {});

/// Measures a whole child against the teacher.
DivergenceSums measure(const Library& library, const HeldOut& data, const Choice& choice);
/// The same for the model in a folder, such as a child that was trained further.
DivergenceSums measure_folder(
    const Library& library,
    const HeldOut& data,
    const std::filesystem::path& folder,
    const descriptor::ModelFamilies& families);

}  // namespace lehr::search
