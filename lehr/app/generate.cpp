// lehr generate --model DIR --prompt TEXT
#include "lehr/train/generate.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "lehr/app/command.h"
#include "lehr/app/model_and_data.h"
#include "lehr/base/error.h"
#include "lehr/base/value_of.h"
#include "lehr/config/command_line.h"
#include "lehr/data/decode_after.h"
#include "lehr/data/tokenizer.h"
#include "lehr/data/tokenizer_file.h"
#include "lehr/pretrained/model_folder.h"
#include "lehr/state/dtype.h"
#include "lehr/train/chat.h"
#include "lehr/train/device.h"
#include "lehr/train/load_on_ranks.h"
#include "lehr/train/train_spec.h"

namespace lehr::app {

namespace {
struct GenerateOptions {
  std::string model;
  std::optional<std::string> prompt;
  std::vector<int64_t> tokens;
  std::optional<std::string> tokenizer;
  bool chat = false;
  std::optional<std::string> chat_template;
  int64_t max_new_tokens = 128;
  double temperature = 0.8;
  int64_t top_k = 0;
  double top_p = 1.0;
  int64_t seed = 0;
  bool ids = false;
  std::string dtype = "float32";
  std::string device = "cpu";
  void fields(FieldVisitor& v) {
    v.required("model", model, "Folder of a model or of adapters: a checkpoint of a run, or one from Hugging Face.");
    v.optional("prompt", prompt, "Text to continue.");
    v.optional("tokens", tokens, "Token ids to continue, instead of text: [1, 2, 3]; ids are printed then.");
    v.optional(
        "tokenizer",
        tokenizer,
        "\"byte\", a folder with tokenizer.json, or the file itself; unset: the model's folder.");
    v.optional("chat", chat, "Take the prompt as a user's message and print the assistant's answer (chat template).");
    v.optional("chat_template", chat_template, "With --chat: file or folder of the template; unset: the model's.");
    v.optional("max_new_tokens", max_new_tokens, "Maximum number of tokens to generate.", positive());
    v.optional("temperature", temperature, "Softmax temperature; 0: greedy decoding.", at_least(0));
    v.optional("top_k", top_k, "Sample from the k most likely tokens; 0: from all.", at_least(0));
    v.optional(
        "top_p",
        top_p,
        "Nucleus sampling: sample from the smallest set of most likely tokens with at least this total probability.",
        Rule{.min = 0, .max = 1, .min_excluded = true});
    v.optional("seed", seed, "Seed of sampling; the same seed generates the same text.", at_least(0));
    v.optional("ids", ids, "Print token ids, such as [4, 5, 6], instead of text.");
    v.optional("dtype", dtype, "Data type of the computation.", one_of({"float32", "float64", "bfloat16"}));
    v.optional("device", device, "Device to compute on.", one_of({"auto", "cpu", "cuda"}));
  }
};

// Prints a prompt and the text after it as tokens are generated. Before the first token nothing is printed, since the
// model may refuse the prompt.
class Printer {
 public:
  /// `prompt` is printed before the new text, and `before` are the last of its ids.
  Printer(const data::Tokenizer& tokenizer, std::string prompt, std::vector<int32_t> before)
      : prompt_(std::move(prompt)), text_(tokenizer, std::move(before)) {}
  void add(int64_t token) { print(text_.add(static_cast<int32_t>(token))); }
  void finish() { print(text_.finish()); }

 private:
  void print(const std::string& text) {
    std::fputs((std::exchange(prompt_, "") + text).c_str(), stdout);
    std::fflush(stdout);
  }
  std::string prompt_;
  data::GrowingText text_;
};

// A model with 257 ids and no tokenizer in its folder was trained on bytes.
std::unique_ptr<data::Tokenizer> find_tokenizer(
    const GenerateOptions& options, const std::filesystem::path& folder, int64_t vocab_size) {
  if (options.tokenizer) {
    return data::load_tokenizer(*options.tokenizer);
  }
  if (data::find_file(folder, "tokenizer.json")) {
    return data::load_tokenizer(folder.string());
  }
  require(
      vocab_size == 257,
      "{}: has no tokenizer.json; name a tokenizer with --tokenizer, or pass ids with --tokens",
      options.model);
  return data::load_tokenizer("byte");
}

// Adapters use the template of their base unless their folder has one. The special tokens are the tokenizer's.
std::shared_ptr<const data::ChatTemplate> find_chat_template(
    const GenerateOptions& options, const pretrained::ModelFolder& model) {
  const std::string own = data::has_chat_template(model.path) ? model.path.string() : model.base.string();
  const std::string tokenizer = options.tokenizer.value_or(model.tokenizer_folder().string());
  const std::string& found = options.tokenizer && data::has_chat_template(tokenizer) ? tokenizer : own;
  return data::load_chat_template(
      options.chat_template.value_or(found), tokenizer, "lehr generate --chat", "--chat-template");
}

// One rank's part. All ranks generate the same tokens, and the first one prints them.
void generate_on(
    const GenerateOptions& options,
    const MeshConfig& config,
    const train::TrainSpecs& specs,
    mesh::Transport* transport) {
  const train::Ranks ranks = ranks_of(config.parallelism, transport);
  const at::Device device = train::choose_device(options.device, transport);
  const auto folder = pretrained::ModelFolder::open(options.model, specs.families());
  Logger log("", !ranks.is_main());
  if (ranks.is_main()) {
    warn_of_another_base(folder, log);
  }
  const auto& shape = folder.args;
  require(
      shape->head() == descriptor::Head::causal_lm,
      "{}: expected a model with a language-model head, found one without (architectures in its config.json); it "
      "cannot generate text",
      options.model);
  std::unique_ptr<data::Tokenizer> tokenizer;
  if (options.prompt) {
    tokenizer = find_tokenizer(options, folder.tokenizer_folder(), shape->vocab_size());
  }
  train::Prompt prompt{.ids = options.tokens, .stop_ids = folder.stop_ids()};
  if (options.prompt) {
    const auto chat = options.chat ? find_chat_template(options, folder) : nullptr;
    prompt = train::make_prompt(*options.prompt, *tokenizer, chat, folder.stop_ids());
  }
  const at::ScalarType dtype = value_of(state::type_from_torch_name(options.dtype), "--dtype");
  const auto model = train::load_for_whole_sequences(folder, specs, config.parallelism, dtype, ranks, device);
  const train::SamplingOptions sampling{
      .max_new_tokens = options.max_new_tokens,
      .temperature = options.temperature,
      .top_k = options.top_k,
      .top_p = options.top_p,
      .seed = static_cast<uint64_t>(options.seed),
      .stop_ids = prompt.stop_ids,
      .max_positions = shape->max_position_ids(),
      .device = device,
      .ranks = &ranks};
  if (!ranks.is_main()) {
    train::generate(*model, prompt.ids, sampling);
    return;
  }
  if (options.ids || !options.prompt) {
    fmt::print("[{}]\n", fmt::join(train::generate(*model, prompt.ids, sampling), ", "));
    return;
  }
  std::vector<int32_t> before;  // a chat's answer is a text of its own
  if (!options.chat) {
    constexpr int64_t kEnough = 4;
    before.assign(prompt.ids.end() - std::min<int64_t>(std::ssize(prompt.ids), kEnough), prompt.ids.end());
  }
  Printer printer(*tokenizer, options.chat ? "" : *options.prompt, std::move(before));
  train::generate(*model, prompt.ids, sampling, [&](int64_t token) {
    printer.add(token);
    return true;
  });
  printer.finish();
  std::puts("");
}
}  // namespace

int generate(const std::vector<std::string>& args, const train::TrainSpecs& specs, const StartRanks& start) {
  GenerateOptions options;
  const Arguments arguments = parse_arguments(args, ConfigObject::of(options), keys_of<MeshConfig>());
  if (arguments.help) {
    return print_help(
        "lehr generate --model DIR --prompt TEXT [OPTIONS]\n\n"
        "Continues a text, with a key/value cache. A model that needs several devices is sharded by lehr launch,\n"
        "torchrun, srun or mpirun, with the keys of a config's [parallelism]; by default it is fully "
        "sharded:\n\n"
        "  lehr launch -n 2 -- generate --model DIR --prompt TEXT --parallelism.tensor_parallel_degree=2\n\n",
        ConfigObject::of(options));
  }
  require(arguments.positionals.empty(), "lehr generate: takes options only; see lehr generate --help");
  require(
      (!options.chat && !options.chat_template) || (options.chat && options.prompt.has_value()),
      "lehr generate: --chat needs --prompt, and --chat-template needs --chat");
  require(options.prompt.has_value() != !options.tokens.empty(), "lehr generate: expected either --prompt or --tokens");
  on_ranks_of(arguments, options.device, start, [&](const MeshConfig& config, mesh::Transport* transport) {
    generate_on(options, config, specs, transport);
  });
  return 0;
}

}  // namespace lehr::app
