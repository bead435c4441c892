// lehr inspect PATH
#include <fmt/ranges.h>

#include <cstdio>

#include "app/command.h"
#include "app/models.h"
#include "lehr/base/command_line.h"
#include "lehr/base/error.h"
#include "lehr/base/log.h"
#include "lehr/peft/adapter_folder.h"
#include "lehr/state/weights.h"
#include "lehr/train/weights.h"

namespace lehr::app {

namespace {
struct Options {
  int64_t seq_len = 4096;
  bool tensors = true;
  bool map = false;
  void fields(FieldVisitor& v) {
    v.optional("seq_len", seq_len, "Sequence length that the FLOPs are counted for.", positive());
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
}  // namespace

int inspect(const std::vector<std::string>& args) {
  Options options;
  const Arguments arguments = parse_arguments(args, ConfigObject::of(options));
  if (arguments.help) {
    std::fputs(
        ("lehr inspect PATH [OPTIONS]\n\n"
         "Shows what is in a model folder, a checkpoint or one safetensors file, without reading the weights.\n\n" +
         arguments_help(ConfigObject::of(options)))
            .c_str(),
        stdout);
    return 0;
  }
  require(
      arguments.positionals.size() == 1 && arguments.overrides.empty(),
      "lehr inspect: expected one folder or file; see lehr inspect --help");
  const std::filesystem::path path(arguments.positionals[0]);
  if (std::filesystem::exists(path / "config.json")) {
    const auto shape = models().families().from_hf_folder(path);
    const auto counts = shape->get_nparams_and_flops(options.seq_len);
    fmt::print(
        "{}: {} parameters, vocabulary {}, {} positions\n{} FLOPs a token for training at {} tokens ({} causal)\n\n",
        shape->model_type(),
        counts.num_parameters,
        shape->vocab_size(),
        shape->max_position_ids(),
        human_count(static_cast<double>(counts.flops_per_token)),
        options.seq_len,
        human_count(static_cast<double>(counts.causal_flops_per_token)));
  }
  const state::WeightReader reader(path, peft::is_adapter_folder(path) ? peft::kAdapterStem : "model");
  if (options.map) {
    require(
        !peft::is_adapter_folder(path), "{}: holds adapters; --map shows how a whole model is stored", path.string());
    print_map(path, reader);
    return 0;
  }
  size_t width = 0;
  for (const auto& name : reader.names()) {
    width = std::max(width, name.size());
  }
  if (options.tensors) {
    for (const auto& name : reader.names()) {
      const auto& info = reader.info(name);
      fmt::print("{:<{}}  {:<8}  {}\n", name, width, state::dtype_name(info.dtype), fmt::join(info.shape, " x "));
    }
  }
  fmt::print("{} tensors, {}\n", reader.names().size(), human_bytes(static_cast<double>(reader.total_bytes())));
  return 0;
}

}  // namespace lehr::app
