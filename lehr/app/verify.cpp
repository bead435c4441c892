// lehr verify --model DIR [--reference FILE] ...
#include "lehr/train/verify.h"

#include <cstdio>

#include "lehr/app/command.h"
#include "lehr/base/command_line.h"
#include "lehr/base/error.h"
#include "lehr/state/safetensors_writer.h"
#include "lehr/train/device.h"
#include "lehr/train/train_spec.h"

namespace lehr::app {

namespace {
struct Options {
  std::string model;
  std::optional<std::string> reference;
  std::optional<std::string> output;
  std::string dtype = "float32";
  std::string device = "cpu";
  std::optional<double> atol;
  std::optional<double> rtol;
  void fields(FieldVisitor& v) {
    v.required("model", model, "Folder with config.json and safetensors, as Hugging Face writes it.");
    v.optional("reference", reference, "File of expected values; not given: oracle.safetensors in the model's folder.");
    v.optional("output", output, "Also write every computed tensor to this file, under the reference's names.");
    v.optional("dtype", dtype, "Data type of the computation.", one_of({"float32", "float64", "bfloat16"}));
    v.optional("device", device, "Device to compute on.", one_of({"auto", "cpu", "cuda"}));
    v.optional("atol", atol, "Absolute tolerance, instead of the default for each kind of tensor.", at_least(0));
    v.optional("rtol", rtol, "Additional tolerance relative to the expected value.", at_least(0));
  }
};
}  // namespace

int verify(const std::vector<std::string>& args, const train::TrainSpecs& specs) {
  Options options;
  const Arguments arguments = parse_arguments(args, ConfigObject::of(options));
  if (arguments.help) {
    std::fputs(
        ("lehr verify --model DIR [OPTIONS]\n\n"
         "Runs the model on the inputs of a reference and compares every output, gradient and training step in it.\n"
         "Prints one line per tensor and exits with 3 if a difference exceeds its tolerance. docs/verify.md describes\n"
         "the format of a reference; example/reference/make_reference.py writes one for any Hugging Face language\n"
         "model.\n\n" +
         arguments_help(ConfigObject::of(options)))
            .c_str(),
        stdout);
    return 0;
  }
  require(
      arguments.positionals.empty() && arguments.overrides.empty(),
      "lehr verify: takes options only; see lehr verify --help");
  train::VerifyOptions verify_options{
      .model = options.model,
      .dtype = options.dtype == "float64"    ? at::kDouble
               : options.dtype == "bfloat16" ? at::kBFloat16
                                             : at::kFloat,
      .device = train::choose_device(options.device),
      .atol = options.atol,
      .rtol = options.rtol};
  if (options.reference) {
    verify_options.reference = *options.reference;
  }
  const train::VerifyReport report = train::verify(verify_options, specs.families());
  std::fputs(train::format_report(report).c_str(), stdout);
  if (options.output) {
    state::save_safetensors(*options.output, {report.computed.begin(), report.computed.end()});
  }
  return report.ok() ? 0 : 3;
}

}  // namespace lehr::app
