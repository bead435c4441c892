// lehr convert --model DIR --output DIR
#include "lehr/pretrained/convert.h"

#include <fmt/format.h>

#include "lehr/app/command.h"
#include "lehr/app/stop_notice.h"
#include "lehr/app/written_model.h"
#include "lehr/base/error.h"
#include "lehr/base/printable.h"
#include "lehr/config/command_line.h"
#include "lehr/state/dtype.h"
#include "lehr/train/train_spec.h"

namespace lehr::app {

namespace {
constexpr int64_t kMegabyte = 1000 * 1000;

struct ConvertOptions {
  std::string model;
  std::string output;
  std::optional<std::string> expert_layout;
  std::optional<std::string> dtype;
  std::optional<int64_t> max_shard_size_mb;
  bool subblocks = false;
  std::optional<std::string> replace;
  void fields(FieldVisitor& v) {
    v.required("model", model, "Folder with config.json and weights.");
    v.required("output", output, "Folder to write; it must not exist.");
    v.optional(
        "expert_layout",
        expert_layout,
        "Layout of the experts of an MoE layer: a tensor per expert, as in most checkpoints on the Hub, or fused, as "
        "in the memory of transformers 5; unset: unchanged.",
        one_of({"per_expert", "fused"}));
    v.optional(
        "dtype",
        dtype,
        "Data type of the weights; unset: unchanged.",
        one_of({"float32", "float64", "bfloat16", "float16"}));
    v.optional(
        "max_shard_size_mb",
        max_shard_size_mb,
        "Largest size of a weights file, in MB; unset: 5000.",
        between(1, 1'000'000'000));
    v.optional(
        "subblocks",
        subblocks,
        "Write a file per sub-block, in subblocks_safetensors/, with an ordinary index, so that other tools can read "
        "the folder.");
    v.optional(
        "replace",
        replace,
        "JSON file with the sub-blocks to take from other models or to remove; FILE#N: solution N, counted from 0.");
  }
};
}  // namespace

int convert(const std::vector<std::string>& args, const train::TrainSpecs& specs) {
  ConvertOptions options;
  const Arguments arguments = parse_arguments(args, ConfigObject::of(options));
  if (arguments.help) {
    return print_help(
        "lehr convert --model DIR --output DIR [OPTIONS]\n\n"
        "Copies a model folder tensor by tensor, in another layout or data type, or split into files of another\n"
        "size. The tokenizer's files are copied too; the optimizer's state is not.\n\n"
        "With --replace FILE.json the new model is made of sub-blocks of several models. FILE.json is a list:\n\n"
        "  [{\"layer\": 1, \"attention\": {\"no_op\": true}, \"ffn\": {\"model\": \"narrow\"}},\n"
        "   {\"layer\": 2, \"attention\": {\"model\": \"two_kv_heads\", \"layer\": 5}}]\n\n"
        "or a solution of puzzletron; solutions.json#2 is the third one of a list. Folders are relative to the file.\n"
        "A sub-block keeps its block config, and all other tensors are those of --model. See "
        "docs/descriptors.md.\n\n",
        ConfigObject::of(options));
  }
  require(
      arguments.positionals.empty() && arguments.overrides.empty(),
      "lehr convert: expected --model and --output; see lehr convert --help");
  require(
      !options.subblocks || !options.max_shard_size_mb,
      "lehr convert: --max-shard-size-mb: with --subblocks each sub-block has one file, whatever its size; leave one "
      "of them out");
  return write_or_stop("convert", options.output, [&](const std::function<void()>& stop_if_asked) {
    pretrained::ConvertOptions conversion{
        .model = options.model, .output = options.output, .subblocks = options.subblocks};
    if (options.max_shard_size_mb) {
      conversion.max_shard_bytes = *options.max_shard_size_mb * kMegabyte;
    }
    if (options.replace) {
      conversion.replacements = pretrained::read_replacements(*options.replace);
    }
    if (options.expert_layout) {
      conversion.layout =
          *options.expert_layout == "fused" ? descriptor::ExpertLayout::fused : descriptor::ExpertLayout::per_expert;
    }
    if (options.dtype) {
      conversion.dtype = state::type_from_torch_name(*options.dtype);
    }
    conversion.before_each = stop_if_asked;
    const pretrained::ConvertReport report = pretrained::convert_checkpoint(conversion, specs.families());
    for (const std::string& name : report.left_out) {
      fmt::print("{}: left out, because the model does not use it\n", printable(name));
    }
    print_written(options.output, report);
  });
}

}  // namespace lehr::app
