#include "lehr/train/config.h"

#include <algorithm>
#include <filesystem>

namespace lehr::train {

void JobConfig::fields(FieldVisitor& v) {
  v.optional("description", description, "Description of the run; printed at start and saved with the results.");
  v.optional(
      "dump_folder",
      dump_folder,
      "Folder that the run writes everything to. A run that finds checkpoints in it resumes.");
}

void ModelConfig::fields(FieldVisitor& v) {
  v.optional("name", name, "Model family, such as 'qwen3' or 'llama3'.");
  v.optional("flavor", flavor, "Size within the family, such as '0.6B'. Not used together with hf_assets_path.");
  v.optional(
      "hf_assets_path",
      hf_assets_path,
      "Hugging Face folder: its config.json defines the shape. Weights are loaded only through "
      "checkpoint.initial_load_path.");
  v.group("args", args, "Overrides of the shape that flavor or config.json defines.");
}

void ModelConfig::check(Problems& problems) const {
  if (flavor.empty() && hf_assets_path.empty()) {
    problems.add(
        "model.flavor", "expected a flavor such as \"0.6B\", or a folder with config.json in model.hf_assets_path");
  }
  if (!flavor.empty() && !hf_assets_path.empty()) {
    problems.add(
        "model.flavor", "conflicts with model.hf_assets_path, which defines the shape too; remove one of them");
  }
}

void TokenizerConfig::fields(FieldVisitor& v) {
  v.optional("path", path, "\"byte\", a folder with tokenizer.json, or the file itself; unset: model.hf_assets_path.");
  v.optional(
      "chat_template",
      chat_template,
      "Chat data: a file with a chat template (.jinja), which is saved with the model; unset: the template of the "
      "tokenizer's folder.");
}

void TrainingConfig::fields(FieldVisitor& v) {
  v.choice(
      "task",
      task,
      {{"causal_lm", TaskKind::causal_lm},
       {"classification", TaskKind::classification},
       {"token_classification", TaskKind::token_classification},
       {"embedding", TaskKind::embedding},
       {"sft", TaskKind::sft}},
      "Training objective. causal_lm: next-token prediction; classification: one label per text; token_classification: "
      "one label per word; embedding: a vector per text, by InfoNCE with the micro-batch's other texts as negatives (a "
      "dataset of kind \"pairs\"); sft: next-token prediction on the answers in conversations (datasets of kind "
      "\"chat\"; other text is trained on as usual).");
  v.optional("local_batch_size", local_batch_size, "Sequences per data-parallel rank in one forward pass.", positive());
  v.optional(
      "global_batch_size",
      global_batch_size,
      "Sequences per optimizer step over all ranks; a multiple of local_batch_size times the number of data-parallel "
      "ranks. -1: that product, so no gradient accumulation.",
      at_least(-1));
  v.optional("seq_len", seq_len, "Tokens per sequence.", positive());
  v.optional("steps", steps, "Number of optimizer steps of the whole run.", positive());
  v.optional("max_norm", max_norm, "Maximum global gradient norm for gradient clipping. 0: no clipping.", at_least(0));
  v.choice(
      "dtype",
      dtype,
      {{"float32", Precision::float32}, {"bfloat16", Precision::bfloat16}, {"float64", Precision::float64}},
      "Data type of parameters, gradients and optimizer state (see also optimizer.state_dtype).");
  v.optional(
      "mixed_precision_param",
      mixed_precision_param,
      "Data type of the computation while parameters stay in training.dtype (master weights); unset: training.dtype.",
      one_of({"float32", "bfloat16", "float64"}));
  v.optional(
      "mixed_precision_reduce",
      mixed_precision_reduce,
      "Data type of the reduce-scatter of gradients over ranks that shard parameters; unset: training.dtype.",
      one_of({"float32", "bfloat16", "float64"}));
  v.choice(
      "non_finite",
      non_finite,
      {{"stop", optim::NonFinitePolicy::stop}, {"skip", optim::NonFinitePolicy::skip}},
      "Action on a non-finite loss or gradient. stop: end with an error; skip: skip the update and continue.");
  v.optional(
      "router_aux_loss_coef",
      router_aux_loss_coef,
      "MoE: weight of the load-balancing auxiliary loss. 0: no such loss.",
      at_least(0));
  v.optional(
      "router_z_loss_coef",
      router_z_loss_coef,
      "MoE: weight of the router z-loss, which keeps the router's logits small. 0: no such loss.",
      at_least(0));
  v.optional(
      "mtp_loss_coef",
      mtp_loss_coef,
      "Multi-token prediction: weight of the modules' mean loss, such as 0.1 (Megatron's mtp_loss_scaling_factor). 0: the "
      "modules of a folder are left out.",
      at_least(0));
  v.optional(
      "load_balance_coeff",
      load_balance_coeff,
      "MoE with model.args.expert_bias: change of an expert's bias per step, toward an even load.",
      at_least(0));
  v.optional(
      "device",
      device,
      "Device to train on. auto: a GPU if one is usable, with several ranks one GPU per rank; otherwise the CPU.",
      one_of({"auto", "cpu", "cuda"}));
  v.optional(
      "cuda_graphs",
      cuda_graphs,
      "Capture forward and backward as a CUDA graph and replay it. Helps small models that are bound by kernel "
      "launches; keeps the memory of a step allocated. Needs one GPU and Lehr's CUDA kernels.");
  task_fields(v);
}

void TrainingConfig::check(Problems& problems) const {
  constexpr int64_t kMost = 2147483647;  // far beyond any device; products stay in int64
  if (local_batch_size > 0 && seq_len > 0 && local_batch_size > kMost / seq_len) {
    constexpr auto kText =
        "{} sequences of {} tokens (training.seq_len) exceed {} tokens in a forward pass; accumulate gradients instead";
    problems.add("training.local_batch_size", fmt::format(kText, local_batch_size, seq_len, kMost));
  }
  if (global_batch_size == 0 || global_batch_size > kMost) {
    constexpr auto kText = "expected -1 or a number of sequences up to {}, found {}";
    problems.add("training.global_batch_size", fmt::format(kText, kMost, global_batch_size));
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
        "float64 arithmetic with narrower parameters is not supported; set training.dtype to float64 too");
  }
  if (dtype == Precision::bfloat16 && mixed_precision_param.value_or("bfloat16") != "bfloat16") {
    problems.add("training.mixed_precision_param", "must not be wider than training.dtype, which is bfloat16");
  }
}

void check_inside_dump_folder(
    Problems& problems, const std::string& key, const std::string& folder, const std::string& example) {
  const std::filesystem::path path = folder;
  if (path.is_absolute() || std::find(path.begin(), path.end(), "..") != path.end()) {
    problems.add(
        key,
        fmt::format(
            "expected a folder inside job.dump_folder, such as \"{}\", found \"{}\"; to write elsewhere, set "
            "job.dump_folder",
            example,
            folder));
  }
}

void MetricsConfig::fields(FieldVisitor& v) {
  v.optional("log_freq", log_freq, "Steps between log lines; metrics.jsonl holds every step.", positive());
  v.optional("enable_tensorboard", enable_tensorboard, "Write TensorBoard event files.");
  v.optional("save_tb_folder", save_tb_folder, "Folder of the event files, inside job.dump_folder.");
  v.optional(
      "measure_peak",
      measure_peak,
      "Measure the peak of the CPU at start (multiply-adds in registers, 0.1 s), or take that of the GPU from its data "
      "sheet; MFU is relative to it.");
  v.optional(
      "prometheus",
      prometheus,
      "File in Prometheus' text format with the metrics of the last logged step, replaced atomically, for its node "
      "exporter's textfile collector. Unset: none.");
}

void MetricsConfig::check(Problems& problems) const {
  check_inside_dump_folder(problems, "metrics.save_tb_folder", save_tb_folder, "tensorboard");
}

void ProfilingConfig::fields(FieldVisitor& v) {
  v.optional("enable_profiling", enable_profiling, "Write Chrome traces.");
  v.optional("save_traces_folder", save_traces_folder, "Folder of the traces, inside job.dump_folder.");
  v.optional(
      "profile_freq",
      profile_freq,
      "Steps between traces; a cycle of this length ends with the traced steps.",
      positive());
  v.optional("profiler_active", profiler_active, "Steps to trace in each cycle.", positive());
  v.optional(
      "profiler_warmup",
      profiler_warmup,
      "Steps before the traced ones in which the profiler is already set up, so that its start does not slow these.",
      at_least(0));
  v.optional(
      "operator_table",
      operator_table,
      "Print a table of time by operator kind, compared with the peak of this machine; lehr train --profile enables it "
      "for one invocation.");
  v.optional(
      "operator_table_warmup",
      operator_table_warmup,
      "Steps of this invocation to skip before the table's steps.",
      at_least(0));
  v.optional("operator_table_steps", operator_table_steps, "Number of steps that the table covers.", positive());
  v.optional(
      "operator_table_measure_seconds",
      operator_table_measure_seconds,
      "Seconds to measure each limit of this machine: the peak of its arithmetic, and memory bandwidth.",
      positive());
}

void ProfilingConfig::check(Problems& problems) const {
  check_inside_dump_folder(problems, "profiling.save_traces_folder", save_traces_folder, "profile");
  if (profile_freq < profiler_active + profiler_warmup) {
    problems.add(
        "profiling.profile_freq",
        "must be at least profiler_warmup + profiler_active (" + std::to_string(profiler_active + profiler_warmup) +
            "), found " + std::to_string(profile_freq));
  }
}

void ValidationConfig::fields(FieldVisitor& v) {
  v.optional("enable", enable, "Evaluate the loss on held-out data during training.");
  v.optional("freq", freq, "Steps between validations; the last step is always validated.", positive());
  v.optional(
      "steps",
      steps,
      "Batches of validation.local_batch_size sequences per validation, over all ranks together; -1: all held-out data "
      "once.",
      at_least(-1));
  v.optional("local_batch_size", local_batch_size, "Sequences per data-parallel rank in one forward pass.", positive());
}

void SampleConfig::fields(FieldVisitor& v) {
  v.optional(
      "prompt",
      prompt,
      "Prompt for a text sample at the end of training; a user message if training.task = \"sft\". Unset or empty: no sample.");
  v.optional("max_new_tokens", max_new_tokens, "Maximum number of tokens in the sample.", positive());
  v.optional("temperature", temperature, "Softmax temperature; 0: greedy decoding.", at_least(0));
  v.optional("top_k", top_k, "Sample from the k most likely tokens; 0: from all.", at_least(0));
  v.optional(
      "top_p",
      top_p,
      "Nucleus sampling: sample from the smallest set of most likely tokens with at least this total "
      "probability.",
      Rule{.min = 0, .max = 1, .min_excluded = true});
}

void CommConfig::fields(FieldVisitor& v) {
  v.optional("init_timeout_seconds", init_timeout_seconds, "Timeout for all ranks to start and connect.", positive());
  v.optional(
      "train_timeout_seconds",
      train_timeout_seconds,
      "Timeout of a collective, including the wait for other ranks.",
      positive());
}

void DebugConfig::fields(FieldVisitor& v) {
  v.optional("seed", seed, "Seed of weight initialization, data order, dropout and sampling.", at_least(0));
  v.optional(
      "deterministic",
      deterministic,
      "Make runs bitwise reproducible. GPU: only deterministic operators, an error where none exists. CPU: float32 "
      "matmuls do not depend on the thread count (bfloat16: where Lehr's own kernels run, docs/ops.md).");
}

void TrainConfig::fields(FieldVisitor& v) {
  v.group("job", job, "The run and its output folder.");
  v.group("model", model, "Model family and shape.");
  v.group("tokenizer", tokenizer, "Tokenizer and chat template.");
  v.group("data", data, "Training and validation data.");
  v.group("training", training, "Batches, steps and precision.");
  v.group("optimizer", optimizer, "Optimizer and parameter groups.");
  v.group("lr_scheduler", lr_scheduler, "Learning-rate schedule.");
  v.group("parallelism", parallelism, "Degrees of the device mesh and parallelism options.");
  v.group(
      "activation_checkpoint",
      activation_checkpoint,
      "Activation checkpointing: recompute activations to save memory.");
  v.group("float8", float8, "Float8 matmuls of linear layers and experts.");
  v.group("peft", peft, "Parameter-efficient fine-tuning.");
  v.group("distillation", distillation, "Knowledge distillation from a teacher.");
  v.group("checkpoint", checkpoint, "Saving, resuming and initial weights.");
  v.group("metrics", metrics, "Logging.");
  v.group("profiling", profiling, "Traces and operator tables.");
  v.group("validation", validation, "Loss on held-out data.");
  v.group("sample", sample, "Text sample at the end of training.");
  v.group("comm", comm, "Timeouts of communication.");
  v.group("reliability", reliability, "Checks for silent corruption, loss spikes and slow ranks.");
  v.group("debug", debug, "Seed and determinism.");
}

std::string TrainingConfig::path_of_dataset() const {
  const bool known = dataset == "c4" || dataset == "c4_test";
  return !dataset_path.empty() ? dataset_path : known ? "recipe/data/c4_sample.jsonl" : "";
}

void TrainConfig::complete() {
  for (std::optional<std::string>* const text : {&sample.prompt, &checkpoint.initial_load_path, &metrics.prometheus}) {
    if (*text && (*text)->empty()) {
      text->reset();  // so that --sample.prompt= on a command line overrules a file
    }
  }
  const std::string path = training.dataset.empty() ? "" : training.path_of_dataset();
  if (path.empty()) {
    return;
  }
  if (data.datasets.empty()) {
    data.datasets.push_back({.path = path});
  }
  if (tokenizer.path.empty() && model.hf_assets_path.empty()) {
    tokenizer.path = "byte";
  }
}

void TrainConfig::check_dataset(Problems& problems) const {
  if (training.dataset.empty()) {
    if (!training.dataset_path.empty()) {
      problems.add(
          "training.dataset_path",
          "requires training.dataset; or remove this key and name the path in [[data.datasets]]");
    }
  } else if (training.path_of_dataset().empty()) {
    problems.add(
        "training.dataset",
        fmt::format(
            "expected \"c4\" or \"c4_test\", found \"{}\"; set training.dataset_path to the file or folder of this data "
            "set, or remove this key and name the data in [[data.datasets]]",
            training.dataset));
  } else if (data.datasets.size() != 1 || data.datasets.front().path != training.path_of_dataset()) {
    problems.add("training.dataset", "conflicts with [[data.datasets]]; remove one of them");
  }
}

void TrainConfig::check(Problems& problems) const {
  check_dataset(problems);
  model.check(problems);
  if (training.dataset.empty() || !data.datasets.empty()) {
    data.check(problems);
  }
  training.check(problems);
  optimizer.check(problems);
  if (checkpoint.initial_load_model_only) {
    lr_scheduler.check(problems, training.steps);
  } else {
    lr_scheduler.check(problems);  // checked against the number of steps once the other run's steps are known
  }
  parallelism.check(problems);
  activation_checkpoint.check(problems);
  float8.check(problems);
  peft.check(problems);
  distillation.check(problems);
  distillation.check_run(problems, training);
  checkpoint.check(problems);
  checkpoint.check_best(problems, validation);
  if (peft.has_adapters() && !checkpoint.initial_load_path) {
    problems.add("peft.method", "adapters need a base model: set checkpoint.initial_load_path to its folder");
  }
  if (peft.has_adapters()) {
    checkpoint.check_adapters(problems);
  }
  metrics.check(problems);
  profiling.check(problems);
  reliability.check(problems);
  reliability.check_run(problems, training);
  if (profiling.operator_table && profiling.operator_table_steps > training.steps - profiling.operator_table_warmup) {
    problems.add(
        "profiling.operator_table_steps",
        "must fit into training.steps (" + std::to_string(training.steps) + ") after operator_table_warmup (" +
            std::to_string(profiling.operator_table_warmup) + "), found " +
            std::to_string(profiling.operator_table_steps));
  }
  if (optimizer.name == optim::OptimizerKind::stochastic_adamw && training.dtype != Precision::bfloat16) {
    problems.add(
        "optimizer.name",
        "stochastic_adamw updates bfloat16 parameters: set training.dtype = \"bfloat16\", or use adamw");
  }
  if (validation.steps == 0) {
    problems.add(
        "validation.steps",
        "expected -1 or a positive number, found 0; validation.enable = false turns validation off");
  }
  if (validation.enable && data.validation_fraction == 0 && data.validation_path.empty()) {
    problems.add("validation.enable", "needs held-out data: set data.validation_fraction or data.validation_path");
  }
  check_task(problems);
}

}  // namespace lehr::train
