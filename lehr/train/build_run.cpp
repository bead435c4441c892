// Builds a run, one named step after the other. Errors that need no memory come before memory is allocated.
#include <algorithm>
#include <filesystem>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/base/log.h"
#include "lehr/base/value_of.h"
#include "lehr/config/config.h"
#include "lehr/config/toml.h"
#include "lehr/ops/cuda.h"
#include "lehr/ops/grouped_linear_float8/grouped_linear_float8.h"
#include "lehr/peft/inject.h"
#include "lehr/train/chat.h"
#include "lehr/train/corruption.h"
#include "lehr/train/device.h"
#include "lehr/train/mesh_rules.h"
#include "lehr/train/model_counts.h"
#include "lehr/train/precision.h"
#include "lehr/train/run.h"
#include "lehr/train/run_changes.h"
#include "lehr/train/run_model.h"
#include "lehr/train/run_peak.h"
#include "lehr/train/run_recompute.h"
#include "lehr/train/run_start.h"
#include "lehr/train/step_profile.h"

namespace lehr::train {

Run::Run(TrainConfig run_config, const RunEnvironment& environment)
    : config(std::move(run_config)),
      spec(environment.specs.at(config.model)),
      logger(environment.log),
      ranks(config.parallelism, environment.transport),
      device(choose_device(config.training.device, environment.transport)),
      tokenizer(spec.build.tokenizer(config)),
      args(spec.build.model_args(config, spec.family, *tokenizer)),
      task(spec.build.task(config)) {
  if (ranks.context() != nullptr) {
    task->use_mesh(*ranks.context());
  }
  if (config.training.global_batch_size < 0) {
    config.training.global_batch_size = config.training.local_batch_size * ranks.data_parallel_size();
  }
}

Run::~Run() = default;

Prompt sample_prompt(const Run& run) {
  const auto chat = run.config.training.task == TaskKind::sft ? chat_template_of(run.config) : nullptr;
  return make_prompt(
      value_of(run.config.sample.prompt, "sample.prompt"), *run.tokenizer, chat, run.args->eos_token_ids());
}

namespace {
void open_device(const Run& run) {
  StepProfile::check_device(run.config, run.device);
  if (run.config.debug.deterministic) {
    if (run.device.is_cuda()) {
      require_deterministic_cublas();
    }
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
}

void check_reliability(const TrainConfig& config, at::Device device) {
  require(
      config.reliability.recompute_every_n_steps == 0 || device.is_cpu() || config.debug.deterministic,
      "reliability.recompute_every_n_steps: two runs on a GPU have the same bits only with debug.deterministic = true; "
      "set it, or leave the key out");
  require(
      config.reliability.straggler_factor == 0 || device.is_cpu(),
      "reliability.straggler_factor: ranks are compared by their hosts' clocks, which do not see the work of a GPU; "
      "leave the key out, or train on CPUs");
}

void check_config(Run& run, const descriptor::ModelFamilies& families) {
  TrainConfig common = run.config;
  common.checkpoint.local_folder.clear();  // each machine may have another one
  run.ranks.require_same("config", to_toml(common));
  check_mesh(run.config, *run.args, run.ranks);
  check_cuda_graphs(run.config, run.device, run.ranks.world_size(), run.args->has_experts());
  if (run.config.training.cuda_graphs) {  // else nothing is opened, since the kernels load CUDA's libraries
    require(
        ops::records_cuda_graphs(),
        "training.cuda_graphs: needs Lehr's CUDA kernels, and {}; leave the key out, or build them (LEHR_CUDA=ON)",
        ops::cuda::open_kernels());
  }
  if (run.config.float8.enable) {
    ops::require_float8(run.device, compute_type(run.config.training), "float8.enable");
    if (!run.config.float8.moe_fqns.empty()) {
      ops::require_grouped_float8(run.device, compute_type(run.config.training), "float8.moe_fqns");
    }
  }
  check_reliability(run.config, run.device);
  run.teacher = open_teacher(run.config, families, *run.args);
}

// The sample is written after the last step; a prompt that does not fit is an error before the first.
void check_sample(const Run& run) {
  const SampleConfig& sample = run.config.sample;
  if (!sample.prompt || run.args->head() != descriptor::Head::causal_lm) {
    return;
  }
  const auto length = static_cast<int64_t>(sample_prompt(run).ids.size());
  require(
      length + sample.max_new_tokens <= run.args->max_position_ids(),
      "sample.max_new_tokens: {} tokens of the prompt and {} new ones do not fit into the model's {} positions "
      "(model.args.max_position_embeddings)",
      length,
      sample.max_new_tokens,
      run.args->max_position_ids());
}

void open_data(Run& run) {
  // The main rank goes first: it may write a token file that the others read.
  run.ranks.main_first([&run] {
    run.data =
        run.spec.build.data(run.config, *run.tokenizer, ModelIds::of(*run.args), [&run](const std::string& text) {
          run.logger.info("{}", text);
        });
  });
  require(
      !run.config.validation.enable || run.data.validation,
      "validation.enable: there is no held-out data; set data.validation_fraction or data.validation_path");
  // Every rank opens the files by itself, perhaps on another machine.
  run.ranks.require_same(
      "[data]: the files or the tokenizer differ between ranks",
      fmt::format("{:016x}, with {} held-out sequences", run.data.fingerprint, run.data.num_validation_rows));
  run.state = new_run_state(run.config, run.data.fingerprint);
}

// A teacher has no backward, so its units always reshard; with ReshardPolicy::never they stay unsharded from the start.
void lay_out_teacher(Run& run, const TrainSpecs& specs, const std::optional<StagePlan>& stages) {
  if (!run.teacher || run.ranks.context() == nullptr) {
    return;
  }
  TrainConfig config = run.config;
  config.model = {};
  const bool whole = config.parallelism.fsdp_reshard_after_forward == shard::ReshardPolicy::never;
  if (!whole) {
    config.parallelism.fsdp_reshard_after_forward = shard::ReshardPolicy::always;
  }
  std::optional<ModelOnRanks::Beside> beside;
  if (stages) {
    beside = {.rank_of_stage = stages->layout.rank_of_stage, .layers = stages->layout.layers};
  }
  try {
    run.teacher_on_ranks =
        std::make_unique<ModelOnRanks>(*run.teacher, specs, std::move(config), run.ranks, run.device, beside);
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("distillation.teacher: {}", error.what()));
  }
  const int64_t last = stages ? stages->layout.num_stages() - 1 : 0, layers = run.teacher_on_ranks->num_layers();
  std::map<int64_t, TeacherStage> of_rank;
  for (ModelOnRanks::Stage& stage : run.teacher_on_ranks->stages()) {
    of_rank.emplace(
        stage.number,
        TeacherStage(
            stage.model,
            whole ? nullptr : &stage.sharded,
            stage.number == last,
            {.first = stage.first_layer, .all = layers},
            run.config.distillation));
  }
  run.distillation = std::make_unique<DistillationTask>(*run.task, run.config.distillation, std::move(of_rank));
}

// After the model, so that a model that does not fit is reported without loading its teacher.
void load_teacher(Run& run) {
  if (run.teacher_on_ranks) {
    run.teacher_on_ranks->load();
    if (run.config.parallelism.fsdp_reshard_after_forward == shard::ReshardPolicy::never) {
      for (ModelOnRanks::Stage& stage : run.teacher_on_ranks->stages()) {
        stage.sharded.unshard_all();
      }
    }
  } else if (run.teacher) {
    run.distillation = std::make_unique<DistillationTask>(
        *run.task, run.config.distillation, run.teacher->load(run.device, compute_type(run.config.training)));
  }
}

void lock_folder(Run& run) {
  if (run.ranks.is_main()) {
    run.lock = std::make_unique<RunLock>(run.config.job.dump_folder);
  }
}

void build_step(Run& run) {
  const TrainingConfig& training = run.config.training;
  const ReliabilityConfig& reliability = run.config.reliability;
  if (reliability.spike_factor > 0) {
    run.spikes = std::make_unique<LossSpikes>(reliability, run.state.recent_losses);
    if (run.state.step > 0 && run.state.recent_losses.empty() && run.ranks.is_main()) {
      run.logger.warn(
          "reliability.spike_factor: the checkpoint has no losses of earlier steps (perhaps an older version wrote it), so no "
          "loss is a spike in the next {} steps",
          reliability.spike_window);
    }
  }
  if (reliability.straggler_factor > 0) {
    run.stragglers = std::make_unique<Stragglers>(run.config, run.ranks, run.logger);
  }
  run.step = std::make_unique<TrainStep>(
      *run.model,
      run.distillation ? *run.distillation : *run.task,
      *run.optimizer,
      TrainStep::Options{
          .local_batch_size = run.pipeline ? microbatch_rows(run.config) : training.local_batch_size,
          .max_norm = training.max_norm,
          .non_finite = training.non_finite,
          .compute = compute_type(training),
          .seed = static_cast<uint64_t>(run.config.debug.seed),
          .router_aux_loss_coef = training.router_aux_loss_coef,
          .router_z_loss_coef = training.router_z_loss_coef,
          // Routers are frozen under adapters, and so are their biases: no checkpoint of adapters has them.
          .load_balance_coeff = run.config.peft.has_adapters() ? 0 : training.load_balance_coeff,
          .ranks = &run.ranks,
          .sharded = run.sharded.empty() ? nullptr : &run.sharded,
          .device = run.device,
          .pipeline = run.pipeline.get(),
          .recorder = training.cuda_graphs ? ops::make_cuda_recorder(run.device) : nullptr,
          .spikes = run.spikes.get(),
          .gradients_ready =
              [&run] {
                if (run.checkpoints && run.events.has_subscribers(Event::gradients_ready)) {
                  run.checkpoints->wait_copied();  // a handler may write weights, too
                }
                run.events.emit(Event::gradients_ready, {.step = run.state.step + 1, .model = run.model.get()});
                check_replicas(run, run.state.step + 1);
              },
          .before_update =
              [&run] {
                if (run.checkpoints) {
                  run.checkpoints
                      ->wait_copied();  // forward and backward overlap the copy of a save; the update must not
                }
              }});
  run.step->refresh();
}

void open_local_checkpoints(Run& run, const RunStart& start) {
  if (!run.checkpoints) {
    return;
  }
  if (const auto warning = run.checkpoints->open_local(start.checkpoint.has_value())) {
    run.logger.warn("{}", *warning);
  }
}

// Returns nullopt for small models, whose memory hardly matters.
std::optional<ExpectedMemory> expected_memory(const Run& run, const std::optional<StepForecast>& forecast) {
  if (!forecast || run.ranks.world_size() > 1 || run.args->get_nparams_and_flops(1).num_parameters < kLargeModel) {
    return std::nullopt;
  }
  return ExpectedMemory{
      .step = forecast->peak,
      .saves = run.checkpoints ? run.config.checkpoint.copies() * run.checkpoints->copied_bytes() : 0};
}

WorkBesideSteps work_beside_steps(const Run& run) {
  const auto most = run.config.validation.max_rows();
  const int64_t all = run.data.num_validation_rows;
  return {
      .validation_rows = most ? std::min(*most, all) : all,
      .save_bytes = run.checkpoints ? run.checkpoints->copied_bytes() : 0};
}

// Returns whether a saved config has the settings of `config`; its comments, which an older version may have written,
// do not count.
bool has_settings(const std::filesystem::path& saved, const std::string& config) {
  try {
    return to_toml(from_node<TrainConfig>(parse_toml(read_file(saved), saved.string()), saved.string())) == config;
  } catch (const Error&) {  // keys of another version
    return true;
  }
}

// A start of a complete run trains no step, so config.toml keeps the settings that the steps had.
void save_config(const Run& run, const TrainConfig& config) {
  const auto path = std::filesystem::path(run.config.job.dump_folder) / "config.toml";
  const std::string text = to_toml(config);
  if (run.state.step < run.config.training.steps || !std::filesystem::exists(path)) {
    write_file_atomically(path, text);
  } else if (!has_settings(path, text)) {
    run.logger.warn(
        "{} keeps the settings of the complete run, from which those of this start differ; to train with these, choose "
        "another job.dump_folder",
        path.string());
  }
}

// `given` is the config before this start replaced some values by its own choices, which the saved config leaves out.
void open_log(Run& run, const TrainConfig& given, const RunRecompute& recompute) {
  const double peak_flops =
      run.config.metrics.measure_peak ? peak_flops_of_run(run.device, compute_type(run.config.training), run.ranks) : 0;
  if (!run.ranks.is_main()) {
    return;
  }
  TrainConfig saved = run.config;
  saved.profiling.operator_table = given.profiling.operator_table;
  saved.activation_checkpoint = given.activation_checkpoint;
  saved.training.dataset.clear();  // [[data.datasets]] has it now
  saved.training.dataset_path.clear();
  save_config(run, saved);
  run.log = std::make_unique<RunLog>(
      run.config,
      *run.args,
      count_model(run.config, *run.args, run.spec.build),
      *run.model,
      peft::count_trainable(run.named_model()),
      *run.optimizer,
      run.device,
      run.ranks,
      run.state,
      run.logger,
      peak_flops,
      expected_memory(run, recompute.forecast),
      work_beside_steps(run));
  if (run.teacher) {
    run.logger.info("teacher    {}", describe_teacher(run.config, *run.teacher, run.ranks.context()));
  }
  if (!recompute.line.empty()) {
    run.logger.info("recompute  {}", recompute.line);
  }
}
}  // namespace

std::unique_ptr<Run> build_run(TrainConfig config, const RunEnvironment& environment) {
  const double began = metric::ThroughputMeter::steady_seconds();
  const TrainConfig given = config;
  config.profiling.operator_table = given.profiling.operator_table || environment.profile;
  auto built = std::make_unique<Run>(std::move(config), environment);
  Run& run = *built;
  open_device(run);
  check_config(run, environment.specs.families());
  const RunRecompute recompute = choose_for_run(run, environment);
  const std::optional<StagePlan> stages = plan_stages(run);
  check_sample(run);
  open_data(run);
  lay_out_teacher(run, environment.specs, stages);
  build_model_on_mesh(run, stages);
  build_run_optimizer(run, stages);
  lock_folder(run);
  const RunStart start = find_start(run);
  allocate_parameters(run);
  load_or_initialize(run, start);
  open_local_checkpoints(run, start);
  load_teacher(run);
  build_step(run);
  open_log(run, given, recompute);
  if (run.log) {
    run.log->count_from(began);
  }
  return built;
}

}  // namespace lehr::train
