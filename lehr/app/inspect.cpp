// lehr inspect PATH
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>

#include "lehr/app/command.h"
#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/base/log.h"
#include "lehr/base/printable.h"
#include "lehr/base/value_of.h"
#include "lehr/config/command_line.h"
#include "lehr/descriptor/block_picture.h"
#include "lehr/peft/adapter_folder.h"
#include "lehr/pretrained/declared_shape.h"
#include "lehr/pretrained/untrusted.h"
#include "lehr/pretrained/untrusted_text.h"
#include "lehr/pretrained/weights.h"
#include "lehr/state/dtype.h"
#include "lehr/state/weights.h"
#include "lehr/train/train_spec.h"

namespace lehr::app {

namespace {
constexpr int64_t kSeqLen = 4096;

struct InspectOptions {
  std::optional<int64_t> seq_len;
  std::optional<int64_t> num_sequences;
  std::optional<std::string> dtype;
  std::optional<std::string> picture;
  bool tensors = true;
  bool map = false;
  bool untrusted = false;
  void fields(FieldVisitor& v) {
    v.optional("seq_len", seq_len, "Sequence length for FLOPs and KV cache; unset: 4096.", between(1, 100'000'000));
    v.optional(
        "num_sequences", num_sequences, "Number of sequences in the KV cache; unset: 1.", between(1, 100'000'000));
    v.optional(
        "dtype",
        dtype,
        "Data type for the memory of weights and KV cache; unset: that of most weights, bfloat16 without weights.",
        one_of({"float32", "float64", "bfloat16", "float16"}));
    v.optional(
        "picture", picture, "SVG file to write: the layers side by side, with bars for the cost of each sub-block.");
    v.optional(
        "map", map, "Show the state map: stored name and shape of each tensor, operations, parameter and its shape.");
    v.optional(
        "untrusted",
        untrusted,
        "Report what a downloaded folder could do, in Lehr and in other programs, without loading it; nothing else is "
        "shown. Exit code 3 if something is dangerous.");
    v.optional("tensors", tensors, "List every tensor (--no-tensors: only the totals).");
  }
};

void print_map(
    const std::filesystem::path& path, const state::WeightReader& reader, const descriptor::ModelFamilies& families) {
  require(
      std::filesystem::exists(path / "config.json"),
      "lehr inspect --map: {}: expected a folder with a config.json, which names the model of these tensors",
      path.string());
  const auto shape = families.from_hf_folder(path);
  const state::StateMap map = pretrained::checkpoint_map(*shape, reader);
  const auto difference =
      pretrained::check_declared_shape(path / "config.json", *shape, *shape->build({}), map, reader);
  constexpr size_t kRows = 4;  // shown of the hundreds of experts of a layer
  const state::BoundMap bound(map, state::specs_of(reader));
  std::fputs(state::format_table(bound, {.rows_per_group = kRows}).c_str(), stdout);
  for (const std::string& name : difference.left_out) {
    fmt::print("{}: not used\n", printable(name));
  }
  fmt::print("{} tensors, {} parameters\n", map.inputs().size(), map.outputs().size());
}

// Bytes of an element of the data type that most weights have.
int64_t element_bytes(const InspectOptions& options, const state::WeightReader* reader) {
  if (options.dtype) {
    return static_cast<int64_t>(c10::elementSize(value_of(state::type_from_torch_name(*options.dtype), "--dtype")));
  }
  std::map<state::DType, int64_t> bytes;
  if (reader != nullptr) {
    for (const std::string& name : reader->names()) {
      bytes[reader->info(name).dtype] += reader->info(name).num_bytes();
    }
  }
  constexpr int64_t kBitsPerByte = 8, kBFloat16 = 2;
  const auto most =
      std::max_element(bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most != bytes.end() ? std::max<int64_t>(state::dtype_bits(most->first) / kBitsPerByte, 1) : kBFloat16;
}

// Options about layers need a config.json, and a picture needs a folder to be written to.
void check_options(const InspectOptions& options, const std::filesystem::path& path, bool has_shape) {
  const std::pair<const char*, bool> of_layers[] = {
      {"--picture", options.picture.has_value()},
      {"--seq-len", options.seq_len.has_value()},
      {"--num-sequences", options.num_sequences.has_value()},
      {"--dtype", options.dtype.has_value()}};
  for (const auto& [option, is_given] : of_layers) {
    require(
        has_shape || !is_given,
        "lehr inspect {}: {}: expected a folder with a config.json, which describes the layers",
        option,
        path.string());
  }
  if (!options.picture) {
    return;
  }
  const std::filesystem::path picture(*options.picture);
  require(
      picture.has_filename() && !std::filesystem::is_directory(picture),
      "lehr inspect --picture: expected the name of an SVG file, found {}",
      picture.empty() ? "\"\"" : "the folder " + picture.string());
  require(
      !picture.has_parent_path() || std::filesystem::is_directory(picture.parent_path()),
      "lehr inspect --picture: {}: no such folder; create it first",
      picture.parent_path().string());
}

// Prints parameters, memory and FLOPs of each layer, and draws them; `bytes` is the size of an element of most weights.
void show_layers(
    const std::filesystem::path& path,
    const InspectOptions& options,
    const descriptor::ModelArgs& shape,
    int64_t bytes) {
  const auto model = descriptor::blocks_of(
      shape,
      {.num_tokens = options.seq_len.value_or(kSeqLen),
       .num_sequences = options.num_sequences.value_or(1),
       .bytes_per_weight = bytes,
       .bytes_per_cached = bytes});
  fmt::print("{}\n", descriptor::format_blocks(model));
  if (options.picture) {
    // So that "folder/" and "." have a name, too.
    std::filesystem::path folder = std::filesystem::absolute(path).lexically_normal();
    folder = folder.has_filename() ? folder : folder.parent_path();
    write_file_atomically(
        *options.picture,
        descriptor::draw_blocks(
            model,
            fmt::format("{}: {}, {} layers", folder.filename().string(), shape.model_type(), model.blocks.size())));
  }
}

// Prints the content of config.json; `reader` is null if there are no weights.
void show_shape(
    const std::filesystem::path& path,
    const InspectOptions& options,
    const state::WeightReader* reader,
    const descriptor::ModelFamilies& families) {
  const auto shape = families.from_hf_folder(path);
  for (const std::string& what : pretrained::code_in_json(path / "config.json")) {
    fmt::print("config.json: {}\n", printable(what));
  }
  const int64_t seq_len = options.seq_len.value_or(kSeqLen);
  const auto counts = shape->get_nparams_and_flops(seq_len);
  fmt::print(
      "{}: {} parameters, vocabulary {}, {} positions\n{} FLOPs per token for training at {} tokens ({} causal)\n\n",
      shape->model_type(),
      counts.num_parameters,
      shape->vocab_size(),
      shape->max_position_ids(),
      human_count(static_cast<double>(counts.flops_per_token)),
      seq_len,
      human_count(static_cast<double>(counts.causal_flops_per_token)));
  try {
    show_layers(path, options, *shape, element_bytes(options, reader));
  } catch (const Error& error) {
    if (options.picture) {
      throw;
    }
    fmt::print("no table of layers: {}\n\n", printable(error.what()));  // tensors can be listed all the same
  }
}

void list_tensors(const state::WeightReader& reader) {
  size_t width = 0;
  for (const auto& name : reader.names()) {
    width = std::max(width, name.size());
  }
  for (const auto& name : reader.names()) {
    const auto& info = reader.info(name);
    const auto quantized = reader.quantized().find(name);
    fmt::print(
        "{:<{}}  {:<8}  {}{}{}\n",
        printable(name),
        width,
        state::dtype_name(info.dtype),
        fmt::join(info.shape, " x "),
        quantized != reader.quantized().end() ? ", stored as " : "",
        quantized != reader.quantized().end() ? state::name_of(quantized->second.quantization) : "");
  }
}

// Lines such as "danger  pytorch_model.bin: a pickle, ...", and a summary.
int report_untrusted(const std::filesystem::path& path, const descriptor::ModelFamilies& families) {
  constexpr int kCheckFailed = 3;
  const pretrained::UntrustedReport report = pretrained::look_at_untrusted(path, families);
  int64_t dangers = 0;
  for (const auto& finding : report.findings) {
    dangers += finding.danger ? 1 : 0;
    fmt::print("{:<8}{}: {}\n", finding.danger ? "danger" : "note", printable(finding.file), printable(finding.what));
  }
  fmt::print(
      "{} files, {}, {} tensors; {} dangers, {} notes\n",
      report.num_files,
      human_bytes(static_cast<double>(report.num_bytes)),
      report.num_tensors,
      dangers,
      static_cast<int64_t>(report.findings.size()) - dangers);
  return dangers > 0 ? kCheckFailed : 0;
}

// The folder's tensors. Where they cannot be read, `else_show` shows what is known without them before the error.
state::WeightReader open_weights(
    const std::filesystem::path& path, bool has_adapters, const std::function<void()>& else_show) {
  try {
    return state::WeightReader(path, has_adapters ? peft::kAdapterStem : "model");
  } catch (const Error&) {
    else_show();
    throw;
  }
}
}  // namespace

int inspect(const std::vector<std::string>& args, const train::TrainSpecs& specs) {
  InspectOptions options;
  const Arguments arguments = parse_arguments(args, ConfigObject::of(options));
  if (arguments.help) {
    return print_help(
        "lehr inspect PATH [OPTIONS]\n\n"
        "Shows the content of a model folder, a checkpoint or one safetensors file, without reading the weights.\n"
        "For a folder with a config.json it shows parameters, memory and FLOPs of each layer, which needs no\n"
        "weights.\n\n",
        ConfigObject::of(options));
  }
  require(
      arguments.positionals.size() == 1 && arguments.overrides.empty(),
      "lehr inspect: expected one folder or file; see lehr inspect --help");
  const std::filesystem::path path(arguments.positionals[0]);
  if (options.untrusted) {
    return report_untrusted(path, specs.families());
  }
  const bool has_shape = std::filesystem::exists(path / "config.json");
  const bool has_adapters = peft::is_adapter_folder(path);
  check_options(options, path, has_shape);
  if (has_shape && !has_adapters && !options.map && !state::WeightReader::exists(path)) {
    show_shape(path, options, nullptr, specs.families());
    fmt::print("no weights\n");
    return 0;
  }
  const state::WeightReader reader = open_weights(path, has_adapters, [&] {
    if (has_shape && !has_adapters) {
      show_shape(path, options, nullptr, specs.families());
    }
  });
  if (has_shape) {
    show_shape(path, options, &reader, specs.families());
  }
  if (options.map) {
    require(!has_adapters, "{}: holds adapters; --map shows the state map of a whole model", path.string());
    print_map(path, reader, specs.families());
    return 0;
  }
  if (options.tensors) {
    list_tensors(reader);
  }
  fmt::print("{} tensors, {}\n", reader.names().size(), human_bytes(static_cast<double>(reader.total_bytes())));
  return 0;
}

}  // namespace lehr::app
