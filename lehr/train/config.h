// The config of a training run: the sections and keys of a TOML file, with torchtitan's names.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lehr/config/fields.h"
#include "lehr/data/data_config.h"
#include "lehr/descriptor/model_args.h"
#include "lehr/ops/linear_float8/linear_float8.h"
#include "lehr/optim/clip.h"
#include "lehr/optim/lr_schedule.h"
#include "lehr/optim/optimizer_config.h"
#include "lehr/peft/peft_config.h"
#include "lehr/shard/options.h"
#include "lehr/train/task_kind.h"

namespace lehr::train {

/// The section [job]. The members of this struct and those below are keys, which fields() describes.
struct JobConfig {
  std::string description = "a training run";
  std::string dump_folder = "./outputs";
  void fields(FieldVisitor& v);
};

/// The section [model].
struct ModelConfig {
  std::string name = "qwen3";
  std::string flavor;
  std::string hf_assets_path;
  descriptor::ModelOverrides args;
  void fields(FieldVisitor& v);
  void check(Problems& problems) const;
};

/// The section [tokenizer].
struct TokenizerConfig {
  std::string path;
  std::string chat_template;
  void fields(FieldVisitor& v);
};

/// Distribution of layers over pipeline stages: the same number in each, or balanced by FLOPs.
enum class PipelineBalance { even, cost };
/// Values of training.dtype.
enum class Precision { float32, bfloat16, float64 };

/// The section [training].
struct TrainingConfig {
  TaskKind task = TaskKind::causal_lm;
  int64_t local_batch_size = 8;
  int64_t global_batch_size = -1;
  int64_t seq_len = 2048;
  int64_t steps = 10000;
  double max_norm = 1.0;
  Precision dtype = Precision::float32;
  std::optional<std::string> mixed_precision_param;
  std::optional<std::string> mixed_precision_reduce;
  double router_aux_loss_coef = 0;
  double load_balance_coeff = 1e-3;
  double router_z_loss_coef = 0;
  double mtp_loss_coef = 0;
  optim::NonFinitePolicy non_finite = optim::NonFinitePolicy::stop;
  std::string device = "auto";
  bool cuda_graphs = false;
  int64_t num_labels = 2;
  double classifier_dropout = 0;
  double contrastive_temperature = 0.05;
  std::string dataset;
  std::string dataset_path;
  void fields(FieldVisitor& v);
  void check(Problems& problems) const;

  /// Returns the path that `dataset` stands for; empty if it stands for none.
  std::string path_of_dataset() const;

  /// Sequences of one optimizer step.
  int64_t rows_per_step() const { return global_batch_size > 0 ? global_batch_size : local_batch_size; }

 private:
  void task_fields(FieldVisitor& v);
};

/// The section [parallelism].
struct ParallelismConfig {
  int64_t data_parallel_replicate_degree = 1;
  int64_t data_parallel_shard_degree = -1;
  int64_t tensor_parallel_degree = 1;
  bool tensor_parallel_regather = false;
  int64_t context_parallel_degree = 1;
  int64_t expert_parallel_degree = 1;
  int64_t expert_parallel_parts = 1;
  int64_t pipeline_parallel_degree = 1;
  std::string pipeline_parallel_schedule = "1F1B";
  std::optional<std::string> pipeline_parallel_schedule_csv;
  int64_t pipeline_parallel_stages_per_rank = -1;
  int64_t pipeline_parallel_microbatch_size = -1;
  PipelineBalance pipeline_parallel_balance = PipelineBalance::even;
  int64_t pipeline_parallel_first_stage_less_layers = 0;
  int64_t pipeline_parallel_last_stage_less_layers = 0;
  shard::ReshardPolicy fsdp_reshard_after_forward = shard::ReshardPolicy::all_but_last;
  bool fsdp_reduce_each_microbatch = true;
  bool fsdp_cpu_offload = false;
  shard::ContextParallelMethod context_parallel_rotate_method = shard::ContextParallelMethod::all_gather;
  void fields(FieldVisitor& v);
  void check(Problems& problems) const;
};

/// The section [activation_checkpoint].
struct ActivationCheckpointConfig {
  std::string mode = "auto";
  std::string selective_ac_option = "op 2";
  void fields(FieldVisitor& v);
  void check(Problems& problems) const;
  /// The policy that a model is built with. Mode auto stands for "op 2" until a run or a plan replaces it
  /// (train/recompute_choice.h). Throws a usage error for an option that check() reports.
  nn::ActivationCheckpointing policy() const;
};

/// The section [float8].
struct Float8Config {
  bool enable = false;
  ops::Float8Recipe recipe = ops::Float8Recipe::rowwise;
  std::vector<std::string> exclude = {};
  std::vector<std::string> moe_fqns = {};
  void fields(FieldVisitor& v);
  void check(Problems& problems) const;
};

/// The section [distillation].
struct DistillationConfig {
  std::optional<std::string> teacher;
  double kl_weight = 1;
  double cosine_weight = 1;
  double loss_weight = 0;
  double temperature = 1;
  void fields(FieldVisitor& v);
  void check(Problems& problems) const;
  /// Rules between these keys and other sections.
  void check_run(Problems& problems, const TrainingConfig& training) const;
};

struct ValidationConfig;

/// The section [checkpoint].
struct CheckpointConfig {
  bool enable = true;
  std::string folder = "checkpoints";
  int64_t interval = 500;
  int64_t keep_latest_k = 10;
  bool keep_best = false;
  int64_t local_interval = 0;
  std::string local_folder = "/dev/shm";
  int64_t load_step = -1;
  bool verify = true;
  std::optional<std::string> initial_load_path;
  bool initial_load_model_only = true;
  bool initial_load_strict = true;
  std::vector<std::string> exclude_from_loading = {};
  std::vector<std::string> allow_changes = {};
  std::string async_mode = "async";
  int64_t max_shard_size_mb = 5000;
  void fields(FieldVisitor& v);
  void check(Problems& problems) const;

  /// Copies of a rank's state that saves hold in memory: the one that a checkpoint is written from; with local
  /// checkpoints one more, two checkpoints and, on several machines, those of a rank of another one.
  int64_t copies(bool on_several_machines = false) const {
    return local_interval == 0 ? 1 : on_several_machines ? 6 : 4;
  }

  /// True if exclude_from_loading names `part`: "optimizer", "lr_scheduler", "dataloader" or "train_state".
  bool excludes(const std::string& part) const;
  /// The entries of exclude_from_loading that are not parts: regular expressions for names of weights.
  std::vector<std::string> excluded_weights() const;
  /// Additional rules for a run that trains adapters.
  void check_adapters(Problems& problems) const;
  /// Rules between keep_best and the section [validation].
  void check_best(Problems& problems, const ValidationConfig& validation) const;

 private:
  void check_exclusions(Problems& problems) const;
  void check_changes(Problems& problems) const;
};

/// Adds a problem unless `folder`, the value of `key`, is inside job.dump_folder: only that folder is locked against a
/// second run. `example` is a good value.
void check_inside_dump_folder(
    Problems& problems, const std::string& key, const std::string& folder, const std::string& example);

/// The section [metrics].
struct MetricsConfig {
  int64_t log_freq = 1;
  bool enable_tensorboard = true;
  std::string save_tb_folder = "tensorboard";
  bool measure_peak = true;
  std::optional<std::string> prometheus;
  void fields(FieldVisitor& v);
  void check(Problems& problems) const;
};

/// The section [profiling].
struct ProfilingConfig {
  bool enable_profiling = false;
  std::string save_traces_folder = "profile";
  int64_t profile_freq = 10;
  int64_t profiler_active = 1;
  int64_t profiler_warmup = 3;
  bool operator_table = false;
  int64_t operator_table_warmup = 2;
  int64_t operator_table_steps = 3;
  double operator_table_measure_seconds = 0.8;
  void fields(FieldVisitor& v);
  void check(Problems& problems) const;
};

/// The section [validation].
struct ValidationConfig {
  bool enable = false;
  int64_t freq = 10;
  int64_t steps = -1;
  int64_t local_batch_size = 8;
  void fields(FieldVisitor& v);
  /// Maximum number of sequences in a validation; nullopt: all held-out sequences.
  std::optional<int64_t> max_rows() const { return steps > 0 ? std::optional(steps * local_batch_size) : std::nullopt; }
};

/// The section [sample].
struct SampleConfig {
  std::optional<std::string> prompt;
  int64_t max_new_tokens = 200;
  double temperature = 0.8;
  int64_t top_k = 0;
  double top_p = 1.0;
  void fields(FieldVisitor& v);
};

/// The section [comm].
struct CommConfig {
  int64_t init_timeout_seconds = 300;
  int64_t train_timeout_seconds = 100;
  void fields(FieldVisitor& v);
};

/// Action on a difference between replicas, or between two runs of the same arithmetic.
enum class OnCorruption { stop, warn };
/// Action on a loss spike.
enum class OnSpike { warn, skip, stop };

/// The section [reliability].
struct ReliabilityConfig {
  int64_t hash_every_n_steps = 0;
  int64_t recompute_every_n_steps = 0;
  OnCorruption on_corruption = OnCorruption::stop;
  double spike_factor = 0;
  int64_t spike_window = 32;
  OnSpike on_spike = OnSpike::warn;
  double straggler_factor = 0;
  int64_t straggler_window = 20;
  void fields(FieldVisitor& v);
  void check(Problems& problems) const;
  /// Rules between these keys and other sections.
  void check_run(Problems& problems, const TrainingConfig& training) const;
};

/// The section [debug].
struct DebugConfig {
  int64_t seed = 42;
  bool deterministic = false;
  void fields(FieldVisitor& v);
};

/// The config of a run. A default-constructed object holds the default of every key.
struct TrainConfig {
  JobConfig job;
  ModelConfig model;
  TokenizerConfig tokenizer;
  data::DataConfig data;
  TrainingConfig training;
  optim::OptimizerConfig optimizer;
  optim::LRSchedulerConfig lr_scheduler;
  ParallelismConfig parallelism;
  ActivationCheckpointConfig activation_checkpoint;
  Float8Config float8;
  peft::PeftConfig peft;
  DistillationConfig distillation;
  CheckpointConfig checkpoint;
  MetricsConfig metrics;
  ProfilingConfig profiling;
  ValidationConfig validation;
  SampleConfig sample;
  CommConfig comm;
  ReliabilityConfig reliability;
  DebugConfig debug;
  void fields(FieldVisitor& v);
  /// Sets what torchtitan's training.dataset stands for: an entry of data.datasets and, if none is set, the tokenizer.
  void complete();
  /// Rules between keys of different sections.
  void check(Problems& problems) const;

 private:
  void check_task(Problems& problems) const;
  void check_dataset(Problems& problems) const;
};

}  // namespace lehr::train
