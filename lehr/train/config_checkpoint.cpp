// The [checkpoint] section of a run's config.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>

#include "lehr/base/name_pattern.h"
#include "lehr/config/suggest.h"
#include "lehr/train/config.h"

namespace lehr::train {

namespace {
namespace fs = std::filesystem;

// The parts of a checkpoint other than weights, by torchtitan's names.
const std::vector<std::string> kParts{"optimizer", "lr_scheduler", "dataloader", "train_state"};
// The settings that a run may change when it resumes.
const std::vector<std::string> kChanges{"batch_size", "seq_len", "data", "steps"};

bool contains(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
  const auto nearest = suggest(word, known);
  return nearest ? ", did you mean \"" + *nearest + "\"?" : "";
}
}  // namespace

void CheckpointConfig::fields(FieldVisitor& v) {
  v.optional("enable", enable, "Save checkpoints, and resume from the newest complete one.");
  v.optional("folder", folder, "Folder of the checkpoints, inside job.dump_folder.");
  v.optional("interval", interval, "Steps between checkpoints; the last step is always saved.", positive());
  v.optional("keep_latest_k", keep_latest_k, "Number of complete checkpoints to keep; 0: all.", at_least(0));
  v.optional(
      "keep_best",
      keep_best,
      "Also keep the checkpoint with the lowest validation loss, whatever its age; the link \"best\" beside the "
      "checkpoints leads to it. Needs a validation after the step of each checkpoint.");
  v.optional(
      "local_interval",
      local_interval,
      "Steps between local checkpoints, of which only the newest is kept: a run whose processes died resumes from it, "
      "and so repeats fewer steps. With several machines, each also keeps a copy of another machine's part. 0: none.",
      at_least(0));
  v.optional(
      "local_folder",
      local_folder,
      "Folder of this machine for local checkpoints, an absolute path. /dev/shm is memory: two checkpoints are in it. "
      "The ranks may have different ones.");
  v.optional("load_step", load_step, "Step of the checkpoint to resume from; -1: the newest.", at_least(-1));
  v.optional(
      "verify",
      verify,
      "Compare the checksums of all files before resuming, each rank its share; false: compare sizes only.");
  v.optional(
      "initial_load_path",
      initial_load_path,
      "Hugging Face folder with the initial weights of a new run; unset or empty: random weights. A run that resumes does "
      "not read it, except with peft.method = \"lora\".");
  v.optional(
      "initial_load_model_only",
      initial_load_model_only,
      "true: load weights only. false: initial_load_path is a checkpoint of a run; also load its optimizer, schedule, "
      "data position and step, except for exclude_from_loading.");
  v.optional(
      "initial_load_strict",
      initial_load_strict,
      "Missing or unexpected weights in initial_load_path are an error. false: they are listed, and missing weights "
      "are initialized as in a new run. Missing optimizer state of a loaded weight is always an error.");
  v.optional(
      "exclude_from_loading",
      exclude_from_loading,
      "Parts not to load from initial_load_path (optimizer, lr_scheduler, dataloader, train_state), and regular "
      "expressions that match whole names of weights, such as \"lm_head\\\\.weight\".");
  v.optional(
      "allow_changes",
      allow_changes,
      "Settings that may differ from those of the checkpoint that the run continues from: batch_size "
      "(training.global_batch_size), seq_len, data (the section [data]), steps (training.steps).");
  v.optional(
      "async_mode",
      async_mode,
      "async: write checkpoints in the background. disabled: training waits for the disk.",
      one_of({"async", "disabled"}));
  v.optional(
      "max_shard_size_mb",
      max_shard_size_mb,
      "Size in MB above which weights are split over several files.",
      between(1, 1'000'000'000));
}

bool CheckpointConfig::excludes(const std::string& part) const {
  return contains(exclude_from_loading, part);
}

std::vector<std::string> CheckpointConfig::excluded_weights() const {
  std::vector<std::string> patterns;
  std::copy_if(
      exclude_from_loading.begin(), exclude_from_loading.end(), std::back_inserter(patterns), [](const auto& entry) {
        return !contains(kParts, entry);
      });
  return patterns;
}

void CheckpointConfig::check_exclusions(Problems& problems) const {
  const std::string key = "checkpoint.exclude_from_loading";
  for (const std::string& entry : exclude_from_loading) {
    if (contains(kParts, entry)) {
      if (initial_load_model_only) {
        problems.add(key, "\"" + entry + "\" is not loaded anyway, unless checkpoint.initial_load_model_only is false");
      }
      continue;
    }
    // Names of weights contain dots, so a plain word is a misspelled part.
    if (std::all_of(entry.begin(), entry.end(), [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; })) {
      problems.add(
          key,
          "\"" + entry + "\" is not a part of a checkpoint" + did_you_mean(entry, kParts) +
              "; expected optimizer, lr_scheduler, dataloader, train_state, or a regular expression for names of "
              "weights, such as \"lm_head\\\\.weight\"");
      continue;
    }
    if (const std::string problem = NamePattern::problem(entry); !problem.empty()) {
      problems.add(key, problem);
    }
  }
}

void CheckpointConfig::check_changes(Problems& problems) const {
  for (const std::string& word : allow_changes) {
    if (!contains(kChanges, word)) {
      problems.add(
          "checkpoint.allow_changes",
          "\"" + word + "\" is not a setting that may change" + did_you_mean(word, kChanges) +
              "; expected batch_size, seq_len, data or steps");
    }
  }
}

void CheckpointConfig::check_adapters(Problems& problems) const {
  if (!initial_load_model_only || !initial_load_strict || !exclude_from_loading.empty()) {
    problems.add(
        !initial_load_model_only ? "checkpoint.initial_load_model_only"
        : !initial_load_strict   ? "checkpoint.initial_load_strict"
                                 : "checkpoint.exclude_from_loading",
        "adapters are trained on the complete base weights: remove this key with peft.method = \"lora\"");
  }
}

void CheckpointConfig::check_best(Problems& problems, const ValidationConfig& validation) const {
  const std::string key = "checkpoint.keep_best";
  if (!keep_best) {
    return;
  }
  if (!enable || !validation.enable) {
    problems.add(
        key,
        enable ? "compares checkpoints by their validation loss: set validation.enable = true, or leave the key out"
               : "has no effect while checkpoint.enable is false; remove one of the two");
  } else if (validation.freq > 0 && interval % validation.freq != 0) {
    problems.add(
        key,
        fmt::format(
            "needs a validation after the step of each checkpoint: checkpoint.interval must be a multiple of "
            "validation.freq ({}), found {}",
            validation.freq,
            interval));
  }
}

void CheckpointConfig::check(Problems& problems) const {
  check_exclusions(problems);
  check_changes(problems);
  if (!initial_load_path) {
    const std::string reason = "has no effect without checkpoint.initial_load_path; set that too";
    if (!initial_load_model_only) {
      problems.add("checkpoint.initial_load_model_only", reason);
    }
    if (!initial_load_strict) {
      problems.add("checkpoint.initial_load_strict", reason);
    }
    if (!exclude_from_loading.empty()) {
      problems.add("checkpoint.exclude_from_loading", reason);
    }
  }
  if (folder.empty()) {
    problems.add("checkpoint.folder", "expected the name of a folder, found an empty string");
  }
  check_inside_dump_folder(problems, "checkpoint.folder", folder, "checkpoints");
  if (local_interval > 0 && (!enable || local_interval >= interval)) {
    problems.add(
        "checkpoint.local_interval",
        enable ? "has no effect unless it is less than checkpoint.interval; lower it, or set it to 0"
               : "has no effect while checkpoint.enable is false; remove one of the two");
  }
  if (!fs::path(local_folder).is_absolute()) {
    problems.add("checkpoint.local_folder", "expected an absolute path, found \"" + local_folder + "\"");
  }
  if (!enable && load_step >= 0) {
    problems.add("checkpoint.load_step", "has no effect while checkpoint.enable is false; remove one of the two");
  }
}

}  // namespace lehr::train
