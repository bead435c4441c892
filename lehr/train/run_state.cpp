#include "lehr/train/run_state.h"

#include "lehr/base/open_file.h"
#include "lehr/config/config.h"
#include "lehr/config/json.h"

namespace lehr::train {

void RunState::fields(FieldVisitor& v) {
  v.required("step", step, "Completed optimizer steps.", at_least(0));
  v.required("num_tokens", num_tokens, "Tokens trained on, without padding.", at_least(0));
  v.required("skipped", skipped, "Updates that were skipped because a value was not finite.", at_least(0));
  v.required("sequences_read", sequences_read, "Position in the order of data.", at_least(0));
  v.optional("schedule_ahead", schedule_ahead, "Steps of the schedule that another run completed before step 0.");
  v.required("seed", seed, "Seed of the run.");
  v.required("rows_per_step", rows_per_step, "Sequences per optimizer step.", positive());
  v.required("seq_len", seq_len, "Tokens per sequence.", positive());
  v.optional("schedule_steps", schedule_steps, "Steps that the learning-rate schedule spans.", at_least(0));
  v.optional("optimizer", optimizer, "The value of optimizer.name.");
  v.optional("learning_rates", learning_rates, "The values of optimizer.lr and of its param_groups.");
  v.optional("validation_loss", validation_loss, "Loss of the validation after these steps (checkpoint.keep_best).");
  v.optional("recent_losses", recent_losses, "Losses of the last reliability.spike_window steps, oldest first.");
  v.optional("data_fingerprint", data_fingerprint, "Identifies the data and its order.");
  v.optional("packing", packing, "The value of data.packing, for text.");
  v.optional("base_fingerprint", base_fingerprint, "Identifies the base weights of adapters.");
}

namespace {
// Older checkpoints have the position in the data in steps: those completed, and those by which it is ahead of them.
void translate_data_position(Node& state) {
  const auto number = [&](const char* key) {
    const Node* const found = state.find(key);
    return found == nullptr ? 0 : found->as_int();
  };
  if (state.find("sequences_read") == nullptr) {
    state.set("sequences_read", Node((number("step") + number("data_ahead")) * number("rows_per_step")));
    state.erase("data_ahead");
  }
}
}  // namespace

RunState read_run_state(const std::filesystem::path& checkpoint) {
  const std::filesystem::path file = path_beneath(checkpoint, kRunStateFile);
  Node state = parse_json_file(file);
  translate_data_position(state);
  return from_node<RunState>(state, file.string());
}

}  // namespace lehr::train
