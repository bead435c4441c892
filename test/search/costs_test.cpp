#include "lehr/search/costs.h"

#include <gmock/gmock.h>

#include "lehr/base/config.h"
#include "lehr/base/toml.h"
#include "lehr/base/value_of.h"
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
  for (const char* type : {"qwen3", "qwen3_moe"}) {
    const std::string name = std::string("teacher_") + type;
    write(name, type, std::string(type) == "qwen3" ? model::test::kMixed : model::test::kMixtures);
    const Teacher teacher(at(name));
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
    const auto child = train::ModelFolder::open(at(name + "_child"), families()).load(at::kCPU, at::kFloat);
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
      teacher.library, teacher_choice(teacher.space), {.num_tokens = 1, .num_sequences = 3}, 1);  // an empty cache
  EXPECT_GT(whole.prefill, 0);
  EXPECT_GT(whole.decode, 0);
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
