// lehr verify --model DIR [--reference FILE] ...
#include "lehr/verify/verify.h"

#include <atomic>
#include <cstdio>
#include <filesystem>

#include "lehr/app/command.h"
#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/base/value_of.h"
#include "lehr/config/command_line.h"
#include "lehr/state/dtype.h"
#include "lehr/state/safetensors_writer.h"
#include "lehr/train/device.h"
#include "lehr/train/train_spec.h"

namespace lehr::app {

namespace {
struct VerifyOptions {
  std::string model;
  std::optional<std::string> reference;
  std::optional<std::string> output;
  std::string dtype = "float32";
  std::string device = "cpu";
  std::optional<double> atol;
  std::optional<double> rtol;
  void fields(FieldVisitor& v) {
    v.required("model", model, "Folder of a model or of adapters: a checkpoint of a run, or one from Hugging Face.");
    v.optional("reference", reference, "File of expected values; unset: oracle.safetensors in the model's folder.");
    v.optional("output", output, "Also write every computed tensor to this file, under the reference's names.");
    v.optional("dtype", dtype, "Data type of the computation.", one_of({"float32", "float64", "bfloat16"}));
    v.optional("device", device, "Device to compute on.", one_of({"auto", "cpu", "cuda"}));
    v.optional("atol", atol, "Absolute tolerance, instead of the default for each kind of tensor.", at_least(0));
    v.optional("rtol", rtol, "Additional tolerance relative to the expected value.", at_least(0));
  }
};

// One rank's part. All ranks compare the same tensors, and the first one prints the report.
bool verify_on(
    const VerifyOptions& options,
    const MeshConfig& config,
    const train::TrainSpecs& specs,
    mesh::Transport* transport,
    StopNotice& notice) {
  const train::Ranks ranks = ranks_of(config.parallelism, transport);
  verify::VerifyOptions wanted{
      .model = options.model,
      .dtype = value_of(state::type_from_torch_name(options.dtype), "--dtype"),
      .device = train::choose_device(options.device, transport),
      .atol = options.atol,
      .rtol = options.rtol};
  if (options.reference) {
    wanted.reference = *options.reference;
  }
  const verify::VerifyReport report = verify::verify_on_ranks(wanted, specs, config.parallelism, ranks);
  if (ranks.is_main()) {
    std::fputs(verify::format_report(report).c_str(), stdout);
    if (options.output) {
      notice.defer();  // all of the file, or none
      state::save_safetensors(*options.output, {report.computed.begin(), report.computed.end()});
    }
  }
  return report.ok();
}
}  // namespace

int verify(const std::vector<std::string>& args, const train::TrainSpecs& specs, const StartRanks& start) {
  VerifyOptions options;
  const Arguments arguments = parse_arguments(args, ConfigObject::of(options), keys_of<MeshConfig>());
  if (arguments.help) {
    return print_help(
        "lehr verify --model DIR [OPTIONS]\n\n"
        "Runs the model on the inputs of a reference and compares every output, gradient and training step in it.\n"
        "Prints one line per tensor and exits with 3 if a difference exceeds its tolerance. docs/verify.md describes\n"
        "the format of a reference; example/reference/make_reference.py writes one for any Hugging Face language\n"
        "model.\n\n"
        "A model that needs several devices is sharded by lehr launch, torchrun, srun or mpirun, with the keys of a\n"
        "config's [parallelism]; its outputs and gradients are compared, not training steps:\n\n"
        "  lehr launch -n 2 -- verify --model DIR --parallelism.tensor_parallel_degree=2\n\n",
        ConfigObject::of(options));
  }
  require(arguments.positionals.empty(), "lehr verify: takes options only; see lehr verify --help");
  if (options.output) {
    const auto parent = std::filesystem::absolute(*options.output).parent_path();
    require(std::filesystem::is_directory(parent), "--output: {}: no such folder", parent.string());
    require_replaceable(*options.output);
  }
  std::atomic<bool> ok = true;
  StopNotice notice("verify", "before the comparison was complete; nothing was written");
  on_ranks_of(
      arguments,
      options.device,
      start,
      [&](const MeshConfig& config, mesh::Transport* transport) {
        if (!verify_on(options, config, specs, transport, notice)) {
          ok = false;
        }
      },
      &notice);
  return ok ? 0 : 3;
}

}  // namespace lehr::app
