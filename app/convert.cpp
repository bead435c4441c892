// lehr convert --model DIR --output DIR
#include "lehr/train/convert.h"

#include <fmt/ranges.h>

#include <cstdio>

#include "app/command.h"
#include "app/models.h"
#include "lehr/base/command_line.h"
#include "lehr/base/error.h"
#include "lehr/base/log.h"
#include "lehr/state/dtype.h"

namespace lehr::app {

namespace {
constexpr int64_t kMegabyte = 1000 * 1000;

struct Options {
  std::string model;
  std::string output;
  std::optional<std::string> expert_layout;
  std::optional<std::string> dtype;
  int64_t max_shard_size_mb = state::kDefaultMaxShardBytes / kMegabyte;
  void fields(FieldVisitor& v) {
    v.required("model", model, "Folder with config.json and weights.");
    v.required("output", output, "Folder to be made.");
    v.optional(
        "expert_layout",
        expert_layout,
        "How to store the experts of a mixture: a tensor each, as most checkpoints on the Hub, or fused, as "
        "transformers 5 has them in memory; not given: as they are.",
        one_of({"per_expert", "fused"}));
    v.optional(
        "dtype",
        dtype,
        "Type of the weights; not given: as they are.",
        one_of({"float32", "float64", "bfloat16", "float16"}));
    v.optional(
        "max_shard_size_mb", max_shard_size_mb, "Largest size of a weights file, in MB.", between(1, 1'000'000'000));
  }
};
}  // namespace

int convert(const std::vector<std::string>& args) {
  Options options;
  const Arguments arguments = parse_arguments(args, ConfigObject::of(options));
  if (arguments.help) {
    std::fputs(
        ("lehr convert --model DIR --output DIR [OPTIONS]\n\n"
         "Writes a model folder in another layout, type or cut into files, tensor by tensor. The tokenizer's files "
         "come "
         "along; an optimizer's state does not.\n\n" +
         arguments_help(ConfigObject::of(options)))
            .c_str(),
        stdout);
    return 0;
  }
  require(
      arguments.positionals.empty() && arguments.overrides.empty(),
      "lehr convert: expected --model and --output; see lehr convert --help");
  train::ConvertOptions conversion{
      .model = options.model, .output = options.output, .max_shard_bytes = options.max_shard_size_mb * kMegabyte};
  if (options.expert_layout) {
    conversion.layout =
        *options.expert_layout == "fused" ? descriptor::ExpertLayout::fused : descriptor::ExpertLayout::per_expert;
  }
  if (options.dtype) {
    conversion.dtype = state::type_from_torch_name(*options.dtype);
  }
  const train::ConvertReport report = train::convert_checkpoint(conversion, models().families());
  for (const std::string& name : report.left_out) {
    fmt::print("{}: left out, the model does not use it\n", name);
  }
  fmt::print(
      "{}: {} tensors, {} in {} {}; {}\n",
      options.output,
      report.num_tensors,
      human_bytes(static_cast<double>(report.num_bytes)),
      report.num_files,
      report.num_files == 1 ? "file" : "files",
      fmt::join(report.companions, ", "));
  return 0;
}

}  // namespace lehr::app
