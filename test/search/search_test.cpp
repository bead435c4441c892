// Whole searches: ranks find what one process finds, and a search continues where it was stopped.
#include "lehr/search/search.h"

#include <mutex>
#include <set>
#include <sstream>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/base/log.h"
#include "lehr/config/json.h"
#include "lehr/mesh/thread_transport.h"
#include "lehr/meter/memory_meter.h"
#include "lehr/search/work.h"
#include "test/search/support.h"

namespace lehr::search {

namespace {
using prune::testing::error_of;
using testing::Batches;
using testing::families;
using testing::LayerShape;

// Training data that ends with an error at one of its steps.
class Broken : public train::BatchStream {
 public:
  Broken(int64_t first, int64_t last) : batches_(1000, 2, 3, first), left_(last - first) {}
  std::optional<train::Batch> next() override {
    require(left_-- > 0, "stopped");
    return batches_.next();
  }

 private:
  Batches batches_;
  int64_t left_;
};

class Searches : public prune::testing::ModelsInFolders {
 protected:
  Searches() {
    write("teacher", "qwen3_moe", {{4, 8, 6, 2}, {2, 32}});
    data.train = [this](const train::RowShare& rows, int64_t first) {
      const std::lock_guard lock(mutex);
      first_sequences.insert(first);
      return std::make_unique<Broken>(first / rows.global, last_step);
    };
    data.train_once = [](const train::RowShare&, std::optional<int64_t>) { return std::make_unique<Batches>(2, 2, 5); };
    data.validation = [](const train::RowShare&, std::optional<int64_t>) { return std::make_unique<Batches>(3, 2, 7); };
    config.budget.parameters = "70 %";
    config.space.experts_per_token = {1};
    config.local_distillation = {.steps = 6, .lr = 3e-3, .save_steps = 2};
    config.solve.candidates = 3;
    config.workload.rounds = 1;
  }

  void run(const std::string& output, const train::Ranks& ranks) const {
    Logger log("", /*quiet=*/true);
    search_in(output, ranks, log)->run(Stage::report);
  }

  std::unique_ptr<Search> search_in(
      const std::string& output,
      const train::Ranks& ranks,
      Logger& log,
      const std::function<void(Stage)>& enters = {}) const {
    SearchConfig own = config;
    own.search.output = at(output).string();
    return std::make_unique<Search>(
        own,
        SearchEnvironment{
            .teacher = at(teacher),
            .families = families(),
            .log = log,
            .device = at::kCPU,
            .dtype = at::kFloat,
            .seq_len = 12,
            .rows_per_step = 2,
            .rows_per_batch = 2,
            .task = task,
            .data = data,
            .ranks = ranks,
            .distillation = "",
            .distil = {},
            .enters = enters});
  }

  // The weights of the only child.
  std::string child(const std::string& output) const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(at(output))) {
      if (entry.path().filename().string().starts_with("child-")) {
        found.push_back(read_file(entry.path() / "model.safetensors"));
      }
    }
    EXPECT_EQ(found.size(), 1U);
    return found.front();
  }

  std::multiset<std::string> measurements(const std::filesystem::path& file) const {
    std::istringstream text(read_file(file));
    std::multiset<std::string> lines;
    for (std::string line; std::getline(text, line);) {
      lines.insert(line);
    }
    return lines;
  }

  std::string teacher = "teacher";
  SearchConfig config;
  train::RunData data;
  train::CausalLMTask task;
  int64_t last_step = 1000;
  std::mutex mutex;
  std::multiset<int64_t> first_sequences;  // at which training began
};

TEST_F(Searches, FindChildrenOfLatentAttentionAndGatedDeltaNet) {
  config.local_distillation.steps = 2;
  for (const char* type : {"deepseek_v3", "qwen3_next"}) {
    std::vector<LayerShape> layers = model::test::layers_of(type);
    if (!test::all_meshes()) {
      layers.resize(3);
    }
    write(type, type, layers);
    teacher = type;
    run(fmt::format("search_{}", type), train::Ranks());
    const auto found = parse_json_file(at(fmt::format("search_{}", type)) / "search.json");
    const auto parameters = [](const Node& costs) { return costs.at("parameters").as_double(); };
    EXPECT_LE(parameters(found.at("candidates").at(0).at("costs")), 0.7 * parameters(found.at("teacher_costs")));
  }
}

// Layers of Mamba-2, attention, experts and a feed-forward block; the shared expert gets narrower too.
TEST_F(Searches, FindChildrenOfOneMixerPerLayer) {
  const auto flavor = families().from_flavor("nemotron_h", "debugmodel_moe");
  descriptor::ModelOverrides sizes;
  sizes.hidden_size = 16;
  sizes.intermediate_size = 32;
  sizes.num_experts = 6;
  sizes.num_experts_per_tok = 2;
  sizes.moe_intermediate_size = 16;
  sizes.vocab_size = model::test::kVocabulary;
  flavor->apply(sizes);
  Node made = flavor->to_hf_config("float32");
  for (const char* key : {"n_group", "topk_group"}) {
    made.set(key, Node(int64_t{1}));
  }
  made.set("hybrid_override_pattern", Node("M*E-"));
  made.set("num_hidden_layers", Node(int64_t{4}));
  made.set("moe_shared_expert_intermediate_size", Node(int64_t{24}));
  prune::testing::write_model(at("one_mixer"), to_json(made), 7);
  teacher = "one_mixer";
  config.local_distillation.steps = 2;
  config.space.shared_expert_widths = {8};
  run("search", train::Ranks());
  const auto found = parse_json_file(at("search/search.json"));
  const auto parameters = [](const Node& costs) { return costs.at("parameters").as_double(); };
  EXPECT_LE(parameters(found.at("candidates").at(0).at("costs")), 0.7 * parameters(found.at("teacher_costs")));
  std::set<std::string> measured;
  for (const std::string& line : measurements(at("search/scores.jsonl"))) {
    for (const char* variant :
         {"layer 0 attention: no-op",
          "layer 1 attention: kv_heads 2",
          "layer 1 attention: no-op",
          "layer 2 ffn: shared_expert_width 8",
          "layer 2 ffn: expert_width 8",
          "layer 2 ffn: no-op",
          "layer 3 ffn: ffn_width 16",
          "layer 3 ffn: no-op"}) {
      if (line.find(variant) != std::string::npos) {
        measured.insert(variant);
      }
    }
  }
  EXPECT_EQ(measured.size(), 8U) << ::testing::PrintToString(measured);
}

// Of tensors: weights of the teacher, of one variant and of the library, hidden states, activations and logits. Two of
// the four cases unless LEHR_ALL_MESHES=1.
TEST_F(Searches, ScoreInTheMemoryThatDryRunTells) {
  write("wide", "qwen3", {{4, 96}, {4, 96}, {4, 96}, {4, 96}});
  const train::Ranks ranks;
  Logger log("", /*quiet=*/true);
  config.space.experts_per_token = {};
  const std::vector<std::pair<std::string, int64_t>> cases{{"teacher", 2}, {"teacher", 0}, {"wide", 0}, {"wide", 2}};
  for (const auto& [type, steps] : test::every_nth(2, cases)) {
    teacher = type;
    config.local_distillation.steps = steps;
    const std::string output = fmt::format("{}{}", type, steps);
    std::optional<MemoryMeter> meter;
    const auto search = search_in(output, ranks, log, [&](Stage stage) {
      if (stage == Stage::score) {
        meter->reset_peak();
      }
    });
    const SearchWork work = work_of(*search);
    const auto forecast = static_cast<double>(score_bytes(work, measure_pass(*search)));
    meter.emplace(at::kCPU);
    search->run(Stage::score);
    const auto measured = static_cast<double>(meter->peak());
    EXPECT_GT(measured, static_cast<double>(work.teacher_bytes + work.boundary_bytes));
    EXPECT_NEAR(forecast / measured, 1, 0.05) << output;
  }
}

// A budget of the KV cache only; the second layer of the teacher has a window already.
TEST_F(Searches, FindChildrenWithWindows) {
  write("windowed", "qwen3", {{4, 32}, {4, 32, 0, 0, 0, 6}, {4, 32}});
  teacher = "windowed";
  config.budget = {};
  config.budget.kv_cache = "40 %";
  config.space = {};
  config.space.kv_heads = {2};  // not enough for the budget
  config.space.windows = {3, 6};
  config.space.attention_no_op = config.space.attention_linear = false;
  config.space.ffn_widths = {8};
  config.workload.seq_len = 48;
  run("search", train::Ranks());
  const auto found = parse_json_file(at("search/search.json"));
  const Node& best = found.at("candidates").at(0);
  const double cache = best.at("costs").at("kv_cache").as_double();
  EXPECT_LE(cache, 0.4 * found.at("teacher_costs").at("kv_cache").as_double());
  std::string folder;
  for (const auto& entry : std::filesystem::directory_iterator(at("search"))) {
    folder = entry.path().filename().string().starts_with("child-") ? entry.path().string() : folder;
  }
  ASSERT_FALSE(folder.empty());
  const auto args = families().from_hf_folder(folder);
  const auto account =
      descriptor::account_for(*args->decoder_form(), args->block_configs(), {.num_tokens = 48, .num_sequences = 1})
          .total();
  EXPECT_EQ(account.kv_cache_bytes, cache);
  int64_t with_window = 0;
  for (const descriptor::BlockConfig& block : args->block_configs()) {
    with_window += std::get<descriptor::AttentionSubblock>(block.attention).window > 0 ? 1 : 0;
  }
  EXPECT_GE(with_window, 2) << "KV heads alone would cost more";
  // What the search measured is the loss of the folder.
  const testing::Teacher own(at(teacher), {}, at::kFloat);
  const HeldOut held_out{.task = task, .open = [] { return std::make_unique<Batches>(3, 2, 7); }};
  const DivergenceSums sums = measure_folder(own.library, held_out, folder, families());
  EXPECT_DOUBLE_EQ(sums.nll / static_cast<double>(sums.tokens), best.at("measured").at("loss").as_double());
}

TEST_F(Searches, RefusePartsThatAModelDoesNotHave) {
  write("latent", "deepseek_v3", model::test::kLatentMixtures);
  teacher = "latent";
  config.space.kv_heads = {1};
  EXPECT_THAT(
      error_of([&] { run("none", train::Ranks()); }),
      ::testing::HasSubstr("space.kv_heads: in models of type deepseek_v3 all heads read one latent"));
  config.space.kv_heads = {};
  config.space.experts = {4};
  Node changed = parse_json_file(at("latent/config.json"));
  changed.set("n_group", Node(int64_t{2}));
  changed.set("topk_group", Node(int64_t{2}));
  write_file_atomically(at("latent/config.json"), to_json(changed));
  EXPECT_THAT(
      error_of([&] { run("none", train::Ranks()); }),
      ::testing::HasSubstr("space.experts: the routers choose among 2 groups of experts (n_group)"));
  config.space.experts = {};
  config.space.windows = {4};
  EXPECT_THAT(
      error_of([&] { run("none", train::Ranks()); }),
      ::testing::HasSubstr(
          "space.windows: the attention of models of type deepseek_v3 has no sliding windows, and their config.json "
          "cannot give one to a layer; leave the key out"));
  teacher = "teacher";
  config.space.windows = {5, 12};
  EXPECT_THAT(
      error_of([&] { run("none", train::Ranks()); }),
      ::testing::HasSubstr("space.windows: 12 tokens: the sequences by which variants are trained and measured have "
                           "12 (training.seq_len)"));
  EXPECT_FALSE(std::filesystem::exists(at("none")));
  teacher = "latent";
  config.space.windows = {};
  config.local_distillation.steps = 0;
  run("groups", train::Ranks());  // scores of experts, which such routers do not have, are not needed
  const testing::Teacher groups(at("latent"));
  std::string tried;
  for (const Place& place : alternatives(groups.space)) {
    tried += describe(groups.space, place) + "\n";
  }
  EXPECT_THAT(tried, ::testing::HasSubstr("ffn: expert_width "));
  EXPECT_THAT(tried, ::testing::Not(::testing::HasSubstr("experts ")));
}

TEST_F(Searches, OnRanksFindWhatOneProcessFinds) {
  run("alone", train::Ranks());
  mesh::run_ranks(2, [&](mesh::Transport& transport) {
    run("shared", train::Ranks({.data_parallel_shard_degree = -1}, &transport));
  });
  EXPECT_EQ(child("shared"), child("alone"));
  auto all = measurements(at("shared/scores.jsonl"));
  const auto of_second = measurements(at("shared/scores-1.jsonl"));
  EXPECT_LE(std::abs(static_cast<int64_t>(all.size()) - static_cast<int64_t>(of_second.size())), 3);
  all.insert(of_second.begin(), of_second.end());
  EXPECT_EQ(all, measurements(at("alone/scores.jsonl")));
  // One process goes on with the folder.
  const auto read = first_sequences.size();
  run("shared", train::Ranks());
  EXPECT_EQ(first_sequences.size(), read) << "variants were trained again";
  EXPECT_EQ(measurements(at("shared/scores.jsonl")).size() + of_second.size(), all.size());
}

TEST_F(Searches, OnRanksWithFoldersOfTheirOwnMeasureNothingTwice) {
  config.local_distillation.steps = 0;
  const auto search = [&] {
    mesh::run_ranks(2, [&](mesh::Transport& transport) {
      run(fmt::format("of{}", transport.rank()), train::Ranks({.data_parallel_shard_degree = -1}, &transport));
    });
  };
  EXPECT_THAT(
      error_of(search),
      ::testing::HasSubstr("scores.jsonl: measurements of other ranks are missing; ranks must share"));
  EXPECT_TRUE(std::filesystem::exists(at("of1/scores-1.jsonl")));
  EXPECT_FALSE(std::filesystem::exists(at("of1/scores.jsonl"))) << "rank 1 measured the share of rank 0";
}

// Ranks may have different numbers of threads, on which times depend.
TEST_F(Searches, OnRanksTakeTimesOnTheMainRankOnly) {
  const int threads = at::get_num_threads();
  mesh::run_ranks(2, [&](mesh::Transport& transport) {
    at::get_num_threads();  // takes the process's number first
    at::set_num_threads(transport.rank() == 0 ? 3 : 1);
    run("shared", train::Ranks({.data_parallel_shard_degree = -1}, &transport));
  });
  at::set_num_threads(threads);
  EXPECT_THAT(read_file(at("shared/stages.json")), ::testing::HasSubstr(" rounds, 3 threads"));
}

TEST_F(Searches, ContinueInsideTheTrainingOfVariants) {
  run("whole", train::Ranks());
  last_step = 5;
  EXPECT_THROW(run("stopped", train::Ranks()), Error);
  last_step = 1000;
  run("stopped", train::Ranks());
  EXPECT_EQ(first_sequences, (std::multiset<int64_t>{0, 0, 4 * 2})) << "two sequences a step";
  EXPECT_EQ(child("stopped"), child("whole"));
  for (const auto& entry : std::filesystem::directory_iterator(at("stopped/library"))) {
    EXPECT_TRUE(entry.is_regular_file()) << entry.path();
  }
  // Saves of other settings are not used.
  config.local_distillation.lr = 1e-2;
  last_step = 5;
  EXPECT_THROW(run("stopped", train::Ranks()), Error);
  last_step = 1000;
  config.local_distillation.lr = 3e-3;
  first_sequences.clear();
  run("stopped", train::Ranks());
  EXPECT_EQ(first_sequences, (std::multiset<int64_t>{0}));
  EXPECT_EQ(child("stopped"), child("whole"));
}
}  // namespace

}  // namespace lehr::search
