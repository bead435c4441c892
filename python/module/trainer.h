// A training run as a class of torch.classes: Lehr's trainer, one step per call, with Python functions as hooks, loss
// and data.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "lehr/base/log.h"
#include "lehr/config/node.h"
#include "lehr/train/trainer.h"
#include "python/module/callback.h"
#include "python/module/model.h"

namespace lehr::python {

/// One run on one device. Errors about a key of the config name the place where it was set. begin(), step(), save(),
/// finish() and close() run one at a time: a call from within another, or from another thread meanwhile, is refused.
/// After an error of step(), begin() or finish() the run can only be closed.
class Trainer : public torch::CustomClassHolder {
 public:
  struct Options {
    std::string file;  ///< The TOML file; empty: only overrides.
    std::vector<std::pair<std::string, std::string>> overrides;
    bool quiet = true;
    c10::intrusive_ptr<Exchange> exchange;
    Callback loss;   ///< Instead of the task's loss; see own_loss().
    Callback data;   ///< Instead of [data]; see own_data().
    Callback check;  ///< Called where a stop may be requested: after steps, and between the batches of a validation.
  };
  explicit Trainer(Options options);

  /// Opens the data; call it before the first step.
  void begin();
  /// Trains one step. Returns false if there is none left.
  bool step();
  /// The metrics of the last step, and of a validation after it.
  c10::Dict<std::string, double> metrics() const;
  /// Calls `address` at each `event`, a name of train::Event except ready and finished, with the step.
  void on(const std::string& event, int64_t address);
  void save();
  /// Ends the run: waits for the checkpoint that is being written and writes the sample.
  void finish();
  /// Frees the run and its lock on the folder, unless its model() is still in use; nothing else works afterwards.
  void close();
  void refresh() { trainer().refresh(); }
  /// The run's model; it keeps the run alive, even after close().
  static c10::intrusive_ptr<Model> model(const c10::intrusive_ptr<Trainer>& self);
  /// The run's tokenizer; as with model().
  static c10::intrusive_ptr<Tokenizer> tokenizer(const c10::intrusive_ptr<Trainer>& self);
  /// The resolved config as TOML.
  std::string config();
  int64_t completed_steps() const { return step_; }

 private:
  train::Trainer& trainer();
  void require_whole();
  train::TrainSpecs specs_of(const train::TrainConfig& config) const;
  template <class Body>
  auto placed(const Body& body);
  template <class Body>
  auto alone(const char* call, const Body& body);
  template <class Body>
  auto advance(const char* call, const Body& body);

  // A trainer refers to its families and its log.
  struct Owned {
    explicit Owned(bool quiet) : log("", quiet) {}
    train::TrainSpecs specs;
    Logger log;
    std::unique_ptr<train::Trainer> trainer = {};
  };

  Options options_;
  Node sources_;
  std::map<std::string, double> metrics_;
  int64_t step_ = 0;
  std::atomic<bool> running_ = false;
  bool failed_ = false;
  bool stopped_ = false;  // by check
  std::shared_ptr<Owned> owned_;
};

/// `task` with the loss of a Python function: it takes {"hidden_states", "nll", ..., and the batch's tensors under
/// "batch."} from the exchange, and puts {"loss"}, a sum over the valid items.
std::unique_ptr<train::TrainTask> own_loss(
    std::unique_ptr<train::TrainTask> task, const Callback& loss, c10::intrusive_ptr<Exchange> exchange);

/// Training data from a Python function, called with the 0-based step: it puts the batch, {"input_ids", "labels",
/// "position_ids"}, (B, T) int64 each, with B the sequences of a step and T training.seq_len, and optionally
/// "document_ids".
train::RunData own_data(
    const train::TrainConfig& config, const Callback& data, const c10::intrusive_ptr<Exchange>& exchange);

}  // namespace lehr::python
