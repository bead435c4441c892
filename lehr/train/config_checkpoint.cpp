// The section [checkpoint].
#include <algorithm>
#include <cctype>
#include <iterator>
#include <regex>

#include "lehr/base/suggest.h"
#include "lehr/train/config.h"

namespace lehr::train {

namespace {
// What checkpoints hold beside weights, by torchtitan's names.
const std::vector<std::string> kParts{"optimizer", "lr_scheduler", "dataloader", "train_state"};
}  // namespace

void CheckpointConfig::fields(FieldVisitor& v) {
  v.optional("enable", enable, "Save checkpoints, and resume from the newest complete one.");
  v.optional("folder", folder, "Folder of the checkpoints, inside job.dump_folder.");
  v.optional("interval", interval, "Steps between checkpoints; the last step always has one.", positive());
  v.optional("keep_latest_k", keep_latest_k, "Complete checkpoints to keep; 0: all.", at_least(0));
  v.optional("load_step", load_step, "Resume from this step's checkpoint; -1: the newest.", at_least(-1));
  v.optional(
      "verify",
      verify,
      "Before resuming, compare every byte of the files with their checksums, each rank its share; false: sizes only.");
  v.optional(
      "initial_load_path",
      initial_load_path,
      "Folder whose weights a new run starts from (Hugging Face layout); a run that resumes does not read it, but "
      "under "
      "peft.method = \"lora\".");
  v.optional(
      "initial_load_model_only",
      initial_load_model_only,
      "true: weights only. false: initial_load_path is a checkpoint of a run, and its optimizer, schedule, data and "
      "steps are taken over too, but for exclude_from_loading.");
  v.optional(
      "initial_load_strict",
      initial_load_strict,
      "Weights that initial_load_path lacks or has too many are an error. false: they are listed, the former start as "
      "in a new run. State of the optimizer that is missing for others is an error.");
  v.optional(
      "exclude_from_loading",
      exclude_from_loading,
      "What initial_load_path does not give: parts (optimizer, lr_scheduler, dataloader, train_state), and regular "
      "expressions for whole names of weights, as \"lm_head\\\\.weight\".");
  v.optional(
      "async_mode",
      async_mode,
      "async: write while training goes on. disabled: wait for the disk.",
      one_of({"async", "disabled"}));
  v.optional(
      "max_shard_size_mb",
      max_shard_size_mb,
      "Size at which weights are split over several files, in MB.",
      between(1, 1'000'000'000));
}

bool CheckpointConfig::excludes(const std::string& part) const {
  return std::find(exclude_from_loading.begin(), exclude_from_loading.end(), part) != exclude_from_loading.end();
}

std::vector<std::string> CheckpointConfig::excluded_weights() const {
  std::vector<std::string> patterns;
  std::copy_if(
      exclude_from_loading.begin(), exclude_from_loading.end(), std::back_inserter(patterns), [](const auto& entry) {
        return std::find(kParts.begin(), kParts.end(), entry) == kParts.end();
      });
  return patterns;
}

void CheckpointConfig::check_exclusions(Problems& problems) const {
  const std::string key = "checkpoint.exclude_from_loading";
  for (const std::string& entry : exclude_from_loading) {
    if (std::find(kParts.begin(), kParts.end(), entry) != kParts.end()) {
      if (initial_load_model_only) {
        problems.add(key, "\"" + entry + "\" is not loaded anyway, unless checkpoint.initial_load_model_only is false");
      }
      continue;
    }
    // A plain word is the whole name of no weight: these have dots.
    if (std::all_of(entry.begin(), entry.end(), [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; })) {
      const auto nearest = suggest(entry, kParts);
      problems.add(
          key,
          "\"" + entry + "\" is no part of a checkpoint" + (nearest ? ", did you mean \"" + *nearest + "\"?" : "") +
              "; there are optimizer, lr_scheduler, dataloader, train_state, and weights by name, as "
              "\"lm_head\\\\.weight\"");
      continue;
    }
    try {
      const std::regex compiled(entry);
    } catch (const std::regex_error& error) {
      problems.add(key, "\"" + entry + "\" is not a regular expression: " + error.what());
    }
  }
}

void CheckpointConfig::check_adapters(Problems& problems) const {
  if (!initial_load_model_only || !initial_load_strict || !exclude_from_loading.empty()) {
    problems.add(
        !initial_load_model_only ? "checkpoint.initial_load_model_only"
        : !initial_load_strict   ? "checkpoint.initial_load_strict"
                                 : "checkpoint.exclude_from_loading",
        "adapters are trained for whole weights as they are: leave it out with peft.method = \"lora\"");
  }
}

void CheckpointConfig::check(Problems& problems) const {
  check_exclusions(problems);
  if (!initial_load_path) {
    const std::string reason = "has no meaning without checkpoint.initial_load_path; set that too";
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
    problems.add("checkpoint.folder", "expected the name of a folder, found nothing");
  }
  if (!enable && load_step >= 0) {
    problems.add("checkpoint.load_step", "has no meaning while checkpoint.enable is false; remove one of the two");
  }
}

}  // namespace lehr::train
