#include "lehr/train/config.h"

#include <charconv>
#include <string_view>
#include <variant>

#include "lehr/base/error.h"

namespace lehr::train {

void JobConfig::fields(FieldVisitor& v) {
  v.optional("description", description, "What this run is; shown at start and kept with the results.");
  v.optional("dump_folder", dump_folder, "Folder of everything that the run writes. A run in the same folder resumes.");
}

void ModelConfig::fields(FieldVisitor& v) {
  v.optional("name", name, "Model family, as 'qwen3' or 'llama3'.");
  v.optional("flavor", flavor, "A size of the family, as '0.6B'. Not needed when hf_assets_path names a model folder.");
  v.optional(
      "hf_assets_path",
      hf_assets_path,
      "Hugging Face folder: its config.json gives the shape; its weights are read only by "
      "checkpoint.initial_load_path.");
  v.group("args", args, "Changes to the shape that flavor or config.json gives.");
}

void ModelConfig::check(Problems& problems) const {
  if (flavor.empty() && hf_assets_path.empty()) {
    problems.add(
        "model.flavor", "expected a flavor (as \"0.6B\"), or model.hf_assets_path naming a folder with config.json");
  }
  if (!flavor.empty() && !hf_assets_path.empty()) {
    problems.add("model.flavor", "conflicts with model.hf_assets_path, which gives the shape too; remove one of them");
  }
}

void TokenizerConfig::fields(FieldVisitor& v) {
  v.optional("path", path, "\"byte\", or a folder with tokenizer.json; empty: model.hf_assets_path.");
  v.optional(
      "chat_template",
      chat_template,
      "Conversations: a file with a chat template (.jinja), saved with the model; empty: that of the tokenizer's "
      "folder.");
}

void TrainingConfig::fields(FieldVisitor& v) {
  v.choice(
      "task",
      task,
      {{"causal_lm", TaskKind::causal_lm}, {"classification", TaskKind::classification}, {"sft", TaskKind::sft}},
      "What is learned: the next token; a label a text; or the next token of the answers in conversations (data of the "
      "kind \"chat\", other text beside it as it is).");
  v.optional("local_batch_size", local_batch_size, "Rows in one forward pass of one device.", positive());
  v.optional(
      "global_batch_size",
      global_batch_size,
      "Rows in one optimizer step over all devices; a multiple of local_batch_size. -1: one forward pass a device.",
      at_least(-1));
  v.optional("seq_len", seq_len, "Tokens in a row.", positive());
  v.optional("steps", steps, "Optimizer steps of the whole run.", positive());
  v.optional(
      "max_norm",
      max_norm,
      "Largest global norm of the gradient; larger ones are scaled down. 0: no limit.",
      at_least(0));
  v.choice(
      "dtype",
      dtype,
      {{"float32", Precision::float32}, {"bfloat16", Precision::bfloat16}, {"float64", Precision::float64}},
      "Type of parameters, gradients and optimizer state (but see optimizer.state_dtype).");
  v.optional(
      "mixed_precision_param",
      mixed_precision_param,
      "Type to compute in while parameters stay in training.dtype (master weights); not given: training.dtype.",
      one_of({"float32", "bfloat16", "float64"}));
  v.optional(
      "mixed_precision_reduce",
      mixed_precision_reduce,
      "Type that ranks sum gradients in, where each keeps a part of them; not given: training.dtype.",
      one_of({"float32", "bfloat16", "float64"}));
  v.choice(
      "non_finite",
      non_finite,
      {{"stop", optim::NonFinitePolicy::stop}, {"skip", optim::NonFinitePolicy::skip}},
      "When loss or gradient is not finite: stop with an error, or skip the update and go on.");
  v.optional(
      "router_aux_loss_coef",
      router_aux_loss_coef,
      "Models with experts: weight of the load-balancing loss, which evens out the experts' use. 0: none.",
      at_least(0));
  v.optional(
      "router_z_loss_coef",
      router_z_loss_coef,
      "Models with experts: weight of the z-loss, which keeps the routers' logits small. 0: none.",
      at_least(0));
  v.optional(
      "load_balance_coeff",
      load_balance_coeff,
      "Models with model.args.expert_bias: how far a step moves the bias of experts with too few or too many tokens.",
      at_least(0));
  v.optional("device", device, "Where to train; auto takes a GPU if there is one.", one_of({"auto", "cpu", "cuda"}));
  v.optional(
      "cuda_graphs",
      cuda_graphs,
      "On a GPU: record forward and backward of a batch once, and start them as a whole from then on. For models so "
      "small that kernels are over before the host has started the next; takes the memory of a step for good.");
  v.optional("num_labels", num_labels, "Classification: number of classes.", at_least(2));
  v.optional("classifier_dropout", classifier_dropout, "Classification: dropout before the head.", from_below(0, 1));
}

void TrainingConfig::check(Problems& problems) const {
  if (global_batch_size == 0) {
    problems.add("training.global_batch_size", "expected -1 or a positive number of rows, found 0");
  }
  if (global_batch_size > 0 && local_batch_size > 0 && global_batch_size % local_batch_size != 0) {
    problems.add(
        "training.global_batch_size",
        "must be a multiple of training.local_batch_size (" + std::to_string(local_batch_size) + "), found " +
            std::to_string(global_batch_size));
  }
  if (mixed_precision_param == "float64" && dtype != Precision::float64) {
    problems.add(
        "training.mixed_precision_param",
        "float64 arithmetic over narrower parameters is not supported; set training.dtype too");
  }
  if (dtype == Precision::bfloat16 && mixed_precision_param.value_or("bfloat16") != "bfloat16") {
    problems.add("training.mixed_precision_param", "must not be wider than training.dtype, which is bfloat16");
  }
}

void ActivationCheckpointConfig::fields(FieldVisitor& v) {
  v.optional(
      "mode",
      mode,
      "What is computed again in backward instead of being kept: a part (selective), nothing (none: the fastest, "
      "if there is memory for it), or all layers (full).",
      one_of({"none", "full", "selective"}));
  v.optional(
      "selective_ac_option",
      selective_ac_option,
      "Under selective: \"n\", every n-th layer; \"op\", in every layer the matrix products that backward reads; "
      "\"op n\", these in every n-th layer. \"op 2\" takes a third less memory for activations than keeping all (on a "
      "GPU a quarter), and 2 to 7 % more time.");
}

namespace {
constexpr const char* kSelectiveKey = "activation_checkpoint.selective_ac_option";

// What the option asks for, or why it is none.
std::variant<nn::ActivationCheckpointing, std::string> parse_selective(const std::string& option) {
  using nn::ActivationCheckpointing;
  if (option == "op") {
    return ActivationCheckpointing::products_of_every_nth(1);
  }
  std::string_view number = option;
  const bool products = number.starts_with("op ");
  number.remove_prefix(products ? 3 : 0);
  int64_t n = 0;
  const auto [rest, error] = std::from_chars(number.data(), number.data() + number.size(), n);
  if (error != std::errc() || rest != number.data() + number.size() || n < 1) {
    return fmt::format(
        R"(expected "n", "op" or "op n" with a positive whole number n, as "2" or "op 2", found "{}")", option);
  }
  return products ? ActivationCheckpointing::products_of_every_nth(n) : ActivationCheckpointing::every_nth(n);
}
}  // namespace

nn::ActivationCheckpointing ActivationCheckpointConfig::policy() const {
  if (mode != "selective") {
    return mode == "full";
  }
  const auto parsed = parse_selective(selective_ac_option);
  if (const auto* problem = std::get_if<std::string>(&parsed)) {
    fail("{}: {}", kSelectiveKey, *problem);
  }
  return std::get<nn::ActivationCheckpointing>(parsed);
}

void ActivationCheckpointConfig::check(Problems& problems) const {
  const auto parsed = parse_selective(selective_ac_option);
  if (const auto* problem = std::get_if<std::string>(&parsed); mode == "selective" && problem != nullptr) {
    problems.add(kSelectiveKey, *problem);
  }
}

void MetricsConfig::fields(FieldVisitor& v) {
  v.optional("log_freq", log_freq, "Steps between lines of the log; metrics.jsonl has every step.", positive());
  v.optional("enable_tensorboard", enable_tensorboard, "Write TensorBoard event files.");
  v.optional("save_tb_folder", save_tb_folder, "Folder of the event files, inside job.dump_folder.");
  v.optional(
      "measure_peak",
      measure_peak,
      "Measure this machine's matrix-product peak at start, to report the share of it reached.");
}

void ProfilingConfig::fields(FieldVisitor& v) {
  v.optional("enable_profiling", enable_profiling, "Write Chrome traces of some steps.");
  v.optional("save_traces_folder", save_traces_folder, "Folder of the traces, inside job.dump_folder.");
  v.optional("profile_freq", profile_freq, "Steps of a cycle that ends with the traced ones.", positive());
  v.optional("profiler_active", profiler_active, "Steps that are traced in a cycle.", positive());
  v.optional("profiler_warmup", profiler_warmup, "Steps before those that are left to settle.", at_least(0));
  v.optional(
      "operator_table",
      operator_table,
      "Show a table of some steps: time by kind of operator beside what this machine reaches at best. lehr train "
      "--profile does so for one start. On the CPU.");
  v.optional(
      "operator_table_warmup", operator_table_warmup, "Steps of this start before those of the table.", at_least(0));
  v.optional("operator_table_steps", operator_table_steps, "Steps that the table is about.", positive());
  v.optional(
      "operator_table_measure_seconds",
      operator_table_measure_seconds,
      "Seconds to find out what this machine reaches, in products and in memory each.",
      positive());
}

void ProfilingConfig::check(Problems& problems) const {
  if (profile_freq < profiler_active + profiler_warmup) {
    problems.add(
        "profiling.profile_freq",
        "must be at least profiler_warmup + profiler_active (" + std::to_string(profiler_active + profiler_warmup) +
            "), found " + std::to_string(profile_freq));
  }
}

void ValidationConfig::fields(FieldVisitor& v) {
  v.optional("enable", enable, "Measure the loss on held-out data during training.");
  v.optional("freq", freq, "Steps between validations; the last step always has one.", positive());
  v.optional(
      "steps",
      steps,
      "Batches of validation.local_batch_size rows in a validation, of all ranks together; -1: all held-out data, "
      "once.",
      at_least(-1));
  v.optional("local_batch_size", local_batch_size, "Rows in one forward pass.", positive());
}

void SampleConfig::fields(FieldVisitor& v) {
  v.optional(
      "prompt",
      prompt,
      "Text to go on from when training ends, under training.task = \"sft\" what a user says; not given: no sample.");
  v.optional("max_new_tokens", max_new_tokens, "Length of the sample.", positive());
  v.optional("temperature", temperature, "Softmax temperature; 0: always the most likely token.", at_least(0));
  v.optional("top_k", top_k, "Draw from the k most likely tokens; 0: from all.", at_least(0));
  v.optional(
      "top_p",
      top_p,
      "Draw from the most likely tokens that hold this probability together.",
      Rule{.min = 0, .max = 1, .min_excluded = true});
}

void CommConfig::fields(FieldVisitor& v) {
  v.optional(
      "init_timeout_seconds", init_timeout_seconds, "Longest wait for all ranks to start and to connect.", positive());
  v.optional(
      "train_timeout_seconds",
      train_timeout_seconds,
      "Longest that a collective, or what ranks wait for in it, may take.",
      positive());
}

void DebugConfig::fields(FieldVisitor& v) {
  v.optional("seed", seed, "Seed of initial weights, data order, dropout and samples.", at_least(0));
  v.optional(
      "deterministic",
      deterministic,
      "The same bits in every run: on a GPU only operators that promise it, or fail where there is none; on a CPU "
      "float32 products whose bits no number of threads changes (bfloat16 so where Lehr multiplies it, docs/ops.md).");
}

void TrainConfig::fields(FieldVisitor& v) {
  v.group("job", job, "The run and where its results go.");
  v.group("model", model, "Which model.");
  v.group("tokenizer", tokenizer, "Text to ids.");
  v.group("data", data, "What it learns from.");
  v.group("training", training, "Batches, steps and precision.");
  v.group("optimizer", optimizer, "How weights are updated.");
  v.group("lr_scheduler", lr_scheduler, "How the learning rate changes.");
  v.group("parallelism", parallelism, "How the work is spread over devices.");
  v.group("activation_checkpoint", activation_checkpoint, "Memory for time.");
  v.group("float8", float8, "Products of linear layers in float8.");
  v.group("peft", peft, "Training a part of the model.");
  v.group("checkpoint", checkpoint, "Saving and resuming.");
  v.group("metrics", metrics, "What is logged.");
  v.group("profiling", profiling, "Where the time goes.");
  v.group("validation", validation, "Loss on held-out data.");
  v.group("sample", sample, "Text generated when training ends.");
  v.group("comm", comm, "Talking to other ranks.");
  v.group("debug", debug, "Seeds and checks.");
}

void TrainConfig::check(Problems& problems) const {
  model.check(problems);
  data.check(problems);
  training.check(problems);
  optimizer.check(problems);
  if (checkpoint.initial_load_model_only) {
    lr_scheduler.check(problems, training.steps);
  } else {
    lr_scheduler.check(problems);  // the fit is judged when the steps of the other run are known
  }
  parallelism.check(problems);
  activation_checkpoint.check(problems);
  float8.check(problems);
  peft.check(problems);
  checkpoint.check(problems);
  if (peft.has_adapters() && !checkpoint.initial_load_path) {
    problems.add(
        "peft.method", "adapters need the model that they adapt: set checkpoint.initial_load_path to its folder");
  }
  if (peft.has_adapters()) {
    checkpoint.check_adapters(problems);
  }
  profiling.check(problems);
  if (profiling.operator_table && profiling.operator_table_steps > training.steps - profiling.operator_table_warmup) {
    problems.add(
        "profiling.operator_table_steps",
        "must fit into training.steps (" + std::to_string(training.steps) + ") behind operator_table_warmup (" +
            std::to_string(profiling.operator_table_warmup) + "), found " +
            std::to_string(profiling.operator_table_steps));
  }
  if (optimizer.name == optim::OptimizerKind::stochastic_adamw && training.dtype != Precision::bfloat16) {
    problems.add(
        "optimizer.name",
        "stochastic_adamw updates bfloat16 parameters: set training.dtype = \"bfloat16\", or take adamw");
  }
  if (validation.enable && data.validation_fraction == 0 && data.validation_path.empty()) {
    problems.add("validation.enable", "needs held-out data: set data.validation_fraction or data.validation_path");
  }
  if (training.task == TaskKind::sft && !data.has_chat()) {
    problems.add("training.task", "sft needs conversations: a dataset with kind = \"chat\"");
  }
  for (size_t i = 0; i < data.datasets.size() && training.task != TaskKind::sft; ++i) {
    if (data.datasets[i].kind == data::DatasetKind::chat) {
      problems.add("data.datasets." + std::to_string(i) + ".kind", "conversations need training.task = \"sft\"");
    }
  }
  if (sample.prompt && training.task == TaskKind::classification) {
    problems.add(
        "sample.prompt", "only a causal language model can go on from a prompt; training.task is classification");
  }
}

}  // namespace lehr::train
