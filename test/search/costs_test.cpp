#include "lehr/search/costs.h"

#include <gmock/gmock.h>

#include <set>

#include "lehr/base/file.h"
#include "lehr/base/value_of.h"
#include "lehr/config/config.h"
#include "lehr/config/json.h"
#include "lehr/config/toml.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/search/search_config.h"
#include "lehr/search/solution.h"
#include "test/search/support.h"

namespace lehr::search {

namespace {
using prune::testing::error_of;
using testing::families;
using ::testing::HasSubstr;
using testing::Teacher;

class SearchCosts : public prune::testing::ModelsInFolders {};

TEST_F(SearchCosts, OfAChildAreThoseOfItsOwnAccount) {
  for (const char* type : {"qwen3", "qwen3_moe", "glm4_moe", "deepseek_v3", "qwen3_next"}) {
    const std::string name = std::string("teacher_") + type;
    write(name, type, model::test::layers_of(type));
    SpaceConfig config;
    if (type == std::string("qwen3") || type == std::string("glm4_moe")) {
      config.windows = {40, 7};
    }
    const Teacher teacher(at(name), config);
    const descriptor::Workload work{.num_tokens = 96, .num_sequences = 3, .bytes_per_weight = 4};
    const CostTable costs = count_costs(teacher.pieces, teacher.space, work);
    Choice choice = teacher_choice(teacher.space);
    for (const Place& place : alternatives(teacher.space)) {
      choice.of(place) = place.layer % 2 == 0 ? place.variant : 0;
      const descriptor::ModelAccount wanted =
          descriptor::account_for(*teacher.pieces.args().decoder_form(), blocks_of(teacher.space, choice), work);
      EXPECT_EQ(costs.of(choice).account, wanted.total()) << describe(teacher.space, place);
    }
    prune::write_pruned(
        {.model = at(name), .output = at(name + "_child")}, pruning_of(teacher.space, choice), families());
    const auto child = pretrained::ModelFolder::open(at(name + "_child"), families()).load(at::kCPU, at::kFloat);
    EXPECT_EQ(costs.of(choice).account.num_parameters, nn::count_parameters(*child));
  }
}

TEST_F(SearchCosts, TimesAreMeasuredForEverySubblock) {
  write("teacher", "qwen3", model::test::kMixed);
  const Teacher teacher(at("teacher"));
  CostTable costs = count_costs(teacher.pieces, teacher.space, {.num_tokens = 32});
  measure_times(costs, teacher.library, {.num_tokens = 32}, 1, [](int64_t, int64_t) {});
  for (const Place& place : all_variants(teacher.space)) {
    const bool no_op = search::at(teacher.space, place).is_no_op;
    EXPECT_EQ(costs.of(place).prefill_seconds > 0, !no_op) << describe(teacher.space, place);
    EXPECT_EQ(costs.of(place).decode_seconds > 0, !no_op) << describe(teacher.space, place);
  }
  EXPECT_GT(costs.fixed.prefill_seconds, 0);
  EXPECT_GT(costs.fixed.decode_seconds, 0);
  const PartSeconds whole = measure_child_seconds(
      teacher.library,
      teacher_choice(teacher.space),
      {.num_tokens = 1, .num_sequences = 3},  // an empty cache
      1,
      costs.reference);
  EXPECT_GT(whole.prefill, 0);
  EXPECT_GT(whole.decode, 0);
}

// The speed of the machine at the time does not matter.
TEST_F(SearchCosts, TimesAreRelativeToAReference) {
  write("teacher", "qwen3", model::test::kMixed);
  SpaceConfig no_ops;
  no_ops.sizes = false;
  const Teacher teacher(at("teacher"), no_ops, at::kFloat);
  const descriptor::Workload work{.num_tokens = 32};
  CostTable costs = count_costs(teacher.pieces, teacher.space, work);
  measure_times(costs, teacher.library, work, 1, [](int64_t, int64_t) {});
  EXPECT_GT(costs.reference.prefill, 0);
  EXPECT_GT(costs.reference.decode, 0);
  const PartSeconds hours{.prefill = 3600, .decode = 7200};  // times as on a machine that is so slow
  const PartSeconds whole = measure_child_seconds(teacher.library, teacher_choice(teacher.space), work, 1, hours);
  EXPECT_GT(whole.prefill, 360) << "a model takes more than a tenth of its layer's time";
  EXPECT_GT(whole.decode, 720);
}

// Only the same shape has the same bits.
TEST_F(SearchCosts, ShapesThatDifferInTheSharedExpertAloneAreMeasuredEach) {
  const Teacher teacher(
      "test/data/reference/qwen3_5_moe_experts", {.shared_expert_widths = {2}, .attention_no_op = false}, at::kFloat);
  const descriptor::Workload work{.num_tokens = 24, .num_sequences = 2};
  CostTable costs = count_costs(teacher.pieces, teacher.space, work);
  measure_times(costs, teacher.library, work, 1, [](int64_t, int64_t) {});
  std::set<double> seconds;
  const LayerSpace& layer = teacher.space.front();
  for (size_t i = 0; i < layer.ffn.size(); ++i) {
    seconds.insert(costs.ffn[0][i].prefill_seconds);
  }
  EXPECT_EQ(seconds.size(), layer.ffn.size());
}

TEST_F(SearchCosts, TimesOfLatentsAndStatesAreMeasured) {
  for (const char* type : {"deepseek_v3", "qwen3_next"}) {
    write(type, type, {{1, 16}, {1, 16}, {1, 16}});
    SpaceConfig no_ops;
    no_ops.sizes = false;
    const Teacher teacher(at(type), no_ops, at::kFloat);
    const descriptor::Workload work{.num_tokens = 24, .num_sequences = 2};
    CostTable costs = count_costs(teacher.pieces, teacher.space, work);
    measure_times(costs, teacher.library, work, 1, [](int64_t, int64_t) {});
    for (const Place& place : all_variants(teacher.space)) {
      const bool no_op = search::at(teacher.space, place).is_no_op;
      EXPECT_EQ(costs.of(place).prefill_seconds > 0, !no_op) << type << " " << describe(teacher.space, place);
      EXPECT_EQ(costs.of(place).decode_seconds > 0, !no_op) << type << " " << describe(teacher.space, place);
    }
    // A block config of one KV head is gated DeltaNet in even layers of qwen3_next, and attention in the others.
    EXPECT_EQ(costs.attention[0][0].decode_seconds, costs.attention[2][0].decode_seconds);
    EXPECT_EQ(
        costs.attention[0][0].decode_seconds != costs.attention[1][0].decode_seconds,
        type == std::string("qwen3_next"));
    const PartSeconds whole =
        measure_child_seconds(teacher.library, teacher_choice(teacher.space), work, 1, costs.reference);
    EXPECT_GT(whole.prefill, 0);
    EXPECT_GT(whole.decode, 0);
  }
}

// Measures the times, and returns the work with pairs of tokens for each multiplication by a weight, of each shape that
// has any. The number of timed calls depends on the machine, this ratio hardly does.
std::vector<double> timed_pairs(CostTable& costs, const Teacher& teacher, const descriptor::Workload& work) {
  OperationMeter meter;
  std::vector<double> pairs;
  measure_times(costs, teacher.library, work, 1, [&](int64_t, int64_t) {
    const OperationCounts counts = meter.counts();
    if (counts.attention_flops > 0) {
      pairs.push_back(counts.attention_flops / counts.matmul_flops);
    }
    meter.reset();
  });
  return pairs;
}

TEST_F(SearchCosts, TimesAreThoseOfEachLayersWindow) {
  write("teacher", "gemma3_text", {{4, 32}, {4, 32}, {4, 32}});
  Node config = parse_json_file(at("teacher") / "config.json");
  config.set("layer_types", parse_json(R"(["sliding_attention", "full_attention", "sliding_attention"])", "types"));
  config.set("sliding_window", Node(int64_t{8}));
  config.set("max_position_embeddings", Node(int64_t{4096}));
  write_file_atomically(at("teacher") / "config.json", to_json(config));
  SpaceConfig no_ops;
  no_ops.sizes = false;
  const Teacher teacher(at("teacher"), no_ops, at::kFloat);
  const descriptor::Workload work{.num_tokens = 512};
  CostTable costs = count_costs(teacher.pieces, teacher.space, work);
  const std::vector<double> pairs = timed_pairs(costs, teacher, work);
  ASSERT_EQ(pairs.size(), 2U) << "the third layer's window was measured with the first's";
  EXPECT_GT(pairs[1], 10 * pairs[0]);  // 256 or more instead of 8
  EXPECT_EQ(costs.attention[2][0].prefill_seconds, costs.attention[0][0].prefill_seconds);
}

// Its keys and values are those of as many tokens, and a token attends to as many: in closed form and in what is timed.
TEST_F(SearchCosts, OfAWindowAreThoseOfItsTokens) {
  write("teacher", "qwen3", {{4, 32}});
  Node config = parse_json_file(at("teacher") / "config.json");
  config.set("max_position_embeddings", Node(int64_t{4096}));
  write_file_atomically(at("teacher") / "config.json", to_json(config));
  SpaceConfig windows;
  windows.windows = {16};
  windows.kv_heads = {2};
  windows.ffn_widths = {8};
  windows.attention_linear = windows.attention_no_op = false;
  const Teacher teacher(at("teacher"), windows, at::kFloat);
  const descriptor::Workload work{.num_tokens = 512, .num_sequences = 2};
  CostTable costs = count_costs(teacher.pieces, teacher.space, work);
  const auto& of = costs.attention[0];
  ASSERT_EQ(of.size(), 4U);  // teacher, window 16, kv_heads 2, kv_heads 2 and window 16
  for (const size_t whole : {0, 2}) {
    const Cost &all = of[whole], &window = of[whole + 1];
    EXPECT_EQ(window.account.num_parameters, all.account.num_parameters);
    EXPECT_EQ(window.of(CostKind::kv_cache), all.of(CostKind::kv_cache) * 16 / 512);
    const double pairs = 16.0 * 17 / 2 + 496 * 16, all_pairs = 512.0 * 513 / 2;
    const double of_pair = 4.0 * model::test::kHeads * model::test::kHeadDim;
    EXPECT_EQ(all.of(CostKind::prefill_flops) - window.of(CostKind::prefill_flops), of_pair * (all_pairs - pairs));
    EXPECT_EQ(all.of(CostKind::decode_flops) - window.of(CostKind::decode_flops), of_pair * (512 - 16));
  }
  const std::vector<double> timed = timed_pairs(costs, teacher, {.num_tokens = 2048, .num_sequences = 1});
  ASSERT_EQ(timed.size(), of.size());
  for (const size_t whole : {0, 2}) {
    EXPECT_GT(timed[whole], 10 * timed[whole + 1]) << whole;  // about 1,024 instead of 16
    EXPECT_GT(of[whole + 1].prefill_seconds, 0);
    EXPECT_GT(of[whole + 1].decode_seconds, 0);
  }
}

TEST(Limits, HaveSharesAndUnits) {
  const auto limit = [](const std::string& text) { return parse_limit("budget.memory", CostKind::memory, text); };
  EXPECT_TRUE(limit("60 %").most.is_share);
  EXPECT_DOUBLE_EQ(limit("60%").most.of(50), 30);
  EXPECT_DOUBLE_EQ(limit("1.5 GiB").most.of(50), 1.5 * (1 << 30));
  EXPECT_DOUBLE_EQ(limit("1e6").most.of(50), 1e6);
  EXPECT_DOUBLE_EQ(parse_limit("a", CostKind::parameters, "7 B").most.of(50), 7e9);
  EXPECT_DOUBLE_EQ(parse_limit("a", CostKind::prefill_flops, "300 M").most.of(50), 3e8);
  EXPECT_DOUBLE_EQ(parse_limit("a", CostKind::prefill_seconds, "80 ms").most.of(50), 0.08);
  EXPECT_FALSE(limit("60 %").least);
  const Limit range = limit("50 % to 1 KiB");
  EXPECT_DOUBLE_EQ(value_of(range.least, "least").of(100), 50);
  EXPECT_DOUBLE_EQ(range.most.of(100), 1024);
  EXPECT_DOUBLE_EQ(value_of(limit("50 to 60 %").least, "least").of(10), 5);
  EXPECT_DOUBLE_EQ(value_of(limit("1 to 1.5 GiB").least, "least").of(10), 1 << 30);
  EXPECT_THAT(error_of([&] { limit("60 % to 50 %"); }), HasSubstr("budget.memory: expected the smaller value first"));
  for (const char* wrong :
       {"60 % to", " to 60 %", "60 % to much", "", "much", "-3 %", "3 apples", "0", "nan", "inf", "80 ms", "300 M"}) {
    EXPECT_THAT(error_of([&] { limit(wrong); }), HasSubstr("budget.memory: expected a share")) << wrong;
  }
}

TEST(Limits, AreReportedByTheirKeys) {
  const auto problems = [](const std::string& toml) {
    return error_of([&] { from_node<SearchConfig>(parse_toml(toml, "search.toml"), "search.toml"); });
  };
  const std::string paths = "[search]\nconfig = \"a.toml\"\n";
  EXPECT_THAT(problems(paths), HasSubstr("budget: expected at least one limit"));
  EXPECT_THAT(
      problems(paths + "[budget]\nmemory = \"3 apples\"\n"), HasSubstr("budget.memory: expected a share of the"));
}

// A program with known scores and costs.
TEST_F(SearchCosts, AreTheBudgetsOfTheProgramThatIsSolved) {
  write("teacher", "qwen3", model::test::kMixed);
  const Teacher teacher(at("teacher"));
  const CostTable costs = count_costs(teacher.pieces, teacher.space, {});
  SpaceScores scores{.base = teacher_choice(teacher.space), .of_base = {.tokens = 10, .kl = 1}};
  for (const Place& place : alternatives(teacher.space)) {
    scores.of.push_back({place, {.tokens = 10, .kl = 1 + static_cast<double>(place.layer) + 0.1 * place.variant}});
  }
  const auto limits = std::vector<Limit>{
      {.kind = CostKind::parameters, .most = {.is_share = true, .value = 0.7}, .least = Bound{.value = 9}}};
  const SolverProblem problem = problem_of(teacher.space, scores, costs, limits, Objective::kl);
  ASSERT_EQ(problem.groups.size(), 2 * teacher.space.size());
  EXPECT_EQ(problem.budgets.front().at_least, 9);
  const SolverResult solved = solve(problem);
  ASSERT_TRUE(solved.best);
  const Solution solution = solution_of(teacher.space, scores, costs, *solved.best, Objective::kl);
  EXPECT_NEAR(solution.predicted, 0.1 + solved.best->loss, 1e-15);
  EXPECT_LE(solution.cost.of(CostKind::parameters), 0.7 * costs.of(scores.base).of(CostKind::parameters) * (1 + 1e-9));
  EXPECT_NEAR(solution.cost.of(CostKind::parameters), solved.best->costs[0], 1e-6);
}
}  // namespace

}  // namespace lehr::search
