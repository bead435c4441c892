// lehr inspect PATH
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "app/command.h"
#include "app/models.h"
#include "lehr/base/command_line.h"
#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/base/log.h"
#include "lehr/descriptor/block_picture.h"
#include "lehr/peft/adapter_folder.h"
#include "lehr/state/dtype.h"
#include "lehr/state/weights.h"
#include "lehr/train/weights.h"

namespace lehr::app {

namespace {
constexpr int64_t kSeqLen = 4096;

struct Options {
  std::optional<int64_t> seq_len;
  std::optional<int64_t> num_sequences;
  std::optional<std::string> dtype;
  std::optional<std::string> picture;
  bool tensors = true;
  bool map = false;
  void fields(FieldVisitor& v) {
    v.optional(
        "seq_len",
        seq_len,
        "Sequence length that FLOPs and the KV cache are counted for; not given: 4096.",
        between(1, 100'000'000));
    v.optional(
        "num_sequences", num_sequences, "Sequences in the KV cache at once; not given: 1.", between(1, 100'000'000));
    v.optional(
        "dtype",
        dtype,
        "Type that the memory of weights and KV cache is counted for; not given: that of most weights, bfloat16 where "
        "there are none.",
        one_of({"float32", "float64", "bfloat16", "float16"}));
    v.optional(
        "picture", picture, "SVG file to be written: the layers side by side, bars for what each half of them takes.");
    v.optional(
        "map", map, "Show what becomes of each tensor: stored name and shape, operations, parameter and its shape.");
    v.optional("tensors", tensors, "List every tensor (--no-tensors: the sums only).");
  }
};

void print_map(const std::filesystem::path& path, const state::WeightReader& reader) {
  require(
      std::filesystem::exists(path / "config.json"),
      "lehr inspect --map: {}: expected a folder with a config.json, which says whose tensors these are",
      path.string());
  const auto shape = models().families().from_hf_folder(path);
  const state::StateMap map = train::checkpoint_map(*shape, reader);
  const auto difference = train::check_checkpoint(map, train::parameter_specs(*shape->build({})), reader);
  constexpr size_t kRows = 4;  // of the hundreds of experts of a layer
  const state::BoundMap bound(map, state::specs_of(reader));
  std::fputs(state::format_table(bound, {.rows_per_group = kRows}).c_str(), stdout);
  for (const std::string& name : difference.left_out) {
    fmt::print("{}: not used\n", name);
  }
  fmt::print("{} tensors, {} parameters\n", map.inputs().size(), map.outputs().size());
}

// Of an element of most weights.
int64_t element_bytes(const Options& options, const state::WeightReader* reader) {
  if (options.dtype) {
    return static_cast<int64_t>(c10::elementSize(*state::type_from_torch_name(*options.dtype)));
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

// What is asked of the layers needs a config.json, and a picture a place to be.
void check_options(const Options& options, const std::filesystem::path& path, bool has_shape) {
  const std::pair<const char*, bool> of_layers[] = {
      {"--picture", options.picture.has_value()},
      {"--seq-len", options.seq_len.has_value()},
      {"--num-sequences", options.num_sequences.has_value()},
      {"--dtype", options.dtype.has_value()}};
  for (const auto& [option, is_given] : of_layers) {
    require(
        has_shape || !is_given,
        "lehr inspect {}: {}: expected a folder with a config.json, which says what the layers are",
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
      "lehr inspect --picture: {}: no such folder; make it first",
      picture.parent_path().string());
}

// What each layer takes, and the picture of it; `bytes` are those of an element of most weights.
void show_layers(
    const std::filesystem::path& path, const Options& options, const descriptor::ModelArgs& shape, int64_t bytes) {
  const auto model = descriptor::blocks_of(
      shape,
      {.num_tokens = options.seq_len.value_or(kSeqLen),
       .num_sequences = options.num_sequences.value_or(1),
       .bytes_a_weight = bytes,
       .bytes_a_cached = bytes});
  fmt::print("{}\n", descriptor::format_blocks(model));
  if (options.picture) {
    // "folder/" and "." have a name too.
    std::filesystem::path folder = std::filesystem::absolute(path).lexically_normal();
    folder = folder.has_filename() ? folder : folder.parent_path();
    write_file_atomically(
        *options.picture,
        descriptor::draw_blocks(
            model,
            fmt::format("{}: {}, {} layers", folder.filename().string(), shape.model_type(), model.blocks.size())));
  }
}

// What config.json says; `reader` is null if there are no weights.
void show_shape(const std::filesystem::path& path, const Options& options, const state::WeightReader* reader) {
  const auto shape = models().families().from_hf_folder(path);
  const int64_t seq_len = options.seq_len.value_or(kSeqLen);
  const auto counts = shape->get_nparams_and_flops(seq_len);
  fmt::print(
      "{}: {} parameters, vocabulary {}, {} positions\n{} FLOPs a token for training at {} tokens ({} causal)\n\n",
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
    fmt::print("no table of layers: {}\n\n", error.what());  // the tensors are there all the same
  }
}

void list_tensors(const state::WeightReader& reader) {
  size_t width = 0;
  for (const auto& name : reader.names()) {
    width = std::max(width, name.size());
  }
  for (const auto& name : reader.names()) {
    const auto& info = reader.info(name);
    fmt::print("{:<{}}  {:<8}  {}\n", name, width, state::dtype_name(info.dtype), fmt::join(info.shape, " x "));
  }
}
}  // namespace

int inspect(const std::vector<std::string>& args) {
  Options options;
  const Arguments arguments = parse_arguments(args, ConfigObject::of(options));
  if (arguments.help) {
    std::fputs(
        ("lehr inspect PATH [OPTIONS]\n\n"
         "Shows what is in a model folder, a checkpoint or one safetensors file, without reading the weights. A folder "
         "with\n"
         "a config.json is shown layer by layer, with what each takes, and needs no weights for that.\n\n" +
         arguments_help(ConfigObject::of(options)))
            .c_str(),
        stdout);
    return 0;
  }
  require(
      arguments.positionals.size() == 1 && arguments.overrides.empty(),
      "lehr inspect: expected one folder or file; see lehr inspect --help");
  const std::filesystem::path path(arguments.positionals[0]);
  const bool has_shape = std::filesystem::exists(path / "config.json");
  const bool has_adapters = peft::is_adapter_folder(path);
  check_options(options, path, has_shape);
  if (has_shape && !has_adapters && !options.map && !state::WeightReader::exists(path)) {
    show_shape(path, options, nullptr);
    fmt::print("no weights\n");
    return 0;
  }
  const state::WeightReader reader(path, has_adapters ? peft::kAdapterStem : "model");
  if (has_shape) {
    show_shape(path, options, &reader);
  }
  if (options.map) {
    require(!has_adapters, "{}: holds adapters; --map shows how a whole model is stored", path.string());
    print_map(path, reader);
    return 0;
  }
  if (options.tensors) {
    list_tensors(reader);
  }
  fmt::print("{} tensors, {}\n", reader.names().size(), human_bytes(static_cast<double>(reader.total_bytes())));
  return 0;
}

}  // namespace lehr::app
