// lehr convert --model DIR --output DIR
#include "lehr/train/convert.h"

#include <fmt/format.h>

#include <cstdio>

#include "app/command.h"
#include "app/models.h"
#include "app/written_model.h"
#include "lehr/base/command_line.h"
#include "lehr/base/error.h"
#include "lehr/state/dtype.h"

namespace lehr::app {

namespace {
constexpr int64_t kMegabyte = 1000 * 1000;

struct Options {
  std::string model;
  std::string output;
  std::optional<std::string> expert_layout;
  std::optional<std::string> dtype;
  std::optional<int64_t> max_shard_size_mb;
  bool subblocks = false;
  std::optional<std::string> replace;
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
        "max_shard_size_mb",
        max_shard_size_mb,
        "Largest size of a weights file, in MB; not given: 5000.",
        between(1, 1'000'000'000));
    v.optional(
        "subblocks",
        subblocks,
        "A file for each sub-block, in subblocks_safetensors/, with an ordinary index: what else reads a model folder "
        "reads it too.");
    v.optional(
        "replace",
        replace,
        "JSON file that says which halves of which layers are to come from other models, or to be left out.");
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
         "come\n"
         "along; an optimizer's state does not.\n\n"
         "With --replace FILE.json the new model is made of sub-blocks of several: FILE.json is a list, as\n\n"
         "  [{\"layer\": 1, \"attention\": {\"no_op\": true}, \"ffn\": {\"model\": \"narrow\"}},\n"
         "   {\"layer\": 2, \"attention\": {\"model\": \"two_kv_heads\", \"layer\": 5}}]\n\n"
         "or a solution of puzzletron's. Folders are relative to the file; a half takes its block config along, and\n"
         "everything else comes from --model. docs/descriptors.md tells more.\n\n" +
         arguments_help(ConfigObject::of(options)))
            .c_str(),
        stdout);
    return 0;
  }
  require(
      arguments.positionals.empty() && arguments.overrides.empty(),
      "lehr convert: expected --model and --output; see lehr convert --help");
  require(
      !options.subblocks || !options.max_shard_size_mb,
      "lehr convert: --max-shard-size-mb: with --subblocks each sub-block has one file, whatever its size; leave one "
      "of "
      "them out");
  train::ConvertOptions conversion{.model = options.model, .output = options.output, .subblocks = options.subblocks};
  if (options.max_shard_size_mb) {
    conversion.max_shard_bytes = *options.max_shard_size_mb * kMegabyte;
  }
  if (options.replace) {
    conversion.replacements = train::read_replacements(*options.replace);
  }
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
  print_written(options.output, report);
  return 0;
}

}  // namespace lehr::app
