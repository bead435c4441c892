// Runs on meshes of threads, and comparison of their results with one device.
#pragma once

#include <gmock/gmock.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lehr/mesh/thread_transport.h"
#include "lehr/metric/metrics_log.h"
#include "test/all_meshes.h"
#include "test/train/support.h"

namespace lehr::train::testing {

/// Sums have another order than on one device, which costs some 1e-16 each. Some steps of AdamW amplify that (the
/// update divides by the root of a mean of squares); 1e-10 relative is a safe bound.
inline constexpr double kTolerance = 1e-10;

/// Steps of the runs of family(): two in which the learning rate rises, and two in which it falls.
inline constexpr int64_t kSteps = 4;

struct Mesh {
  int64_t dp_replicate = 1, dp_shard = 1, cp = 1, tp = 1, ep = 1, pp = 1;
  int64_t world() const { return pp * dp_replicate * dp_shard * cp * tp; }
  std::string name() const {
    return fmt::format("pp{}_dpr{}_dps{}_cp{}_tp{}_ep{}", pp, dp_replicate, dp_shard, cp, tp, ep);
  }
};

/// A run of a family on a mesh.
struct Case {
  std::string family;  // and what is special about the model
  Mesh mesh;
  std::string name = {};     // of what is special about the run on the mesh
  Overrides overrides = {};  // there only
};

inline void PrintTo(const Case& one, std::ostream* out) {
  *out << one.family << "_" << one.mesh.name() << one.name;
}

/// All meshes of at most eight ranks with degrees 1, 2 and 4, of one stage.
std::vector<Mesh> every_mesh(bool experts);

using test::all_meshes;
using test::every_nth;

struct Schedule {
  std::string name;
  int64_t stages_per_rank;
};

inline const std::vector<Schedule> kSchedules{
    {"GPipe", 1},
    {"1F1B", 1},
    {"ZBH1", 1},
    {"ZBH2", 1},
    {"LoopedBFS", 2},
    {"Interleaved1F1B", 2},
    {"InterleavedZeroBubble", 2},
    {"ZBVZeroBubble", 2},
    {"DualPipeV", 2}};

Overrides of(const Schedule& schedule);

/// Nemotron-H and Gemma 4 with experts, and a small Gemma 4, whose layers have inputs of their own and the keys and
/// values of earlier ones; by these names as families.
inline constexpr const char* kNemotronHWithExperts = "nemotron_h_moe";
inline constexpr const char* kGemma4WithExperts = "gemma4_moe";
inline constexpr const char* kGemma4Small = "gemma4_small";

/// Every family of specs(), and these three.
std::vector<std::string> trained_families();

/// The debug model of such a family, which keeps the modules for multi-token prediction if the family has them; and its
/// form, which says what the layers have.
const descriptor::ModelArgs& debug_model(const std::string& family);
descriptor::DecoderForm form_of(const std::string& family);

/// A small run of such a family, whose layers are of every kind that it has.
Overrides family(const std::string& name);

/// Writes documents to `folder`, of which a sequence of tiny_run() holds one and up to 15 tokens of padding, and
/// returns the overrides of a run that trains on them.
Overrides padded_documents(const std::filesystem::path& folder);

/// Returns the config with the degrees of `mesh`.
TrainConfig with_degrees(TrainConfig config, const Mesh& mesh);

/// Runs `body` with the trainer of each rank of that mesh, ranks as threads.
void on_mesh(
    const Mesh& mesh, const TrainConfig& of_run, int64_t stop_after, const std::function<void(Trainer& trainer)>& body);

/// Trains; `stop_after` > 0 ends the run after that step, as a signal to one rank would.
void train_on(const Mesh& mesh, const TrainConfig& config, int64_t stop_after = 0);

/// The results of a run: curves and checkpointed tensors.
struct Outcome {
  std::map<std::string, std::vector<double>> curves;
  std::map<std::string, at::Tensor> tensors;
};

Outcome outcome_of(const TrainConfig& config, const std::string& weights = "model");

/// The weights that a run starts from, by their names in checkpoints. They are found by a run of one step whose
/// learning rate is too small to change a bit. Only the biases of experts, which have their own rate, are one step
/// ahead.
std::map<std::string, at::Tensor> initial_weights(Overrides overrides);

/// Parallel runs would also be equal if the optimizer did nothing: expects that every matrix has changed by much more
/// than the tolerance. (Norms in bfloat16 may round back to 1.)
void expect_moved(const std::map<std::string, at::Tensor>& before, const std::map<std::string, at::Tensor>& after);

void expect_equal(const Outcome& wanted, const Outcome& found);

}  // namespace lehr::train::testing
