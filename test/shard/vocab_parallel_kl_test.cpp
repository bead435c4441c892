// The distillation loss over a sharded vocabulary equals ops::linear_kl of both whole heads, with its gradients.
#include "lehr/shard/vocab_parallel_kl.h"

#include <gmock/gmock.h>

#include <limits>

#include "lehr/ops/cuda.h"
#include "test/ops/host_launch.h"
#include "test/ops/watch_reads.h"
#include "test/shard/one_device.h"

namespace lehr::shard {
namespace {

using mesh::DistributedContext;

struct Case {
  int64_t rows, vocabulary;
  double temperature, nll_weight;
  bool excludes = false;               // the teacher gives some tokens, and all of rank 0's, no probability
  std::optional<double> softcap = {};  // of the student; the teacher's is twice that
};

struct Models {
  at::Tensor hidden, weight, labels, factor;
  ops::TeacherHead teacher;
};

Models models_of(const Case& c) {
  at::manual_seed(9);
  Models models{
      .hidden = at::randn({c.rows, 6}, at::kDouble).requires_grad_(),
      .weight = at::randn({c.vocabulary, 6}, at::kDouble).requires_grad_(),
      .labels = at::randint(c.vocabulary, {c.rows}),
      .factor = at::rand({c.rows}, at::kDouble),
      .teacher = {.hidden = at::randn({c.rows, 4}, at::kDouble), .weight = at::randn({c.vocabulary, 4}, at::kDouble)}};
  models.labels.narrow(0, 2, 3).fill_(-100);
  if (c.softcap) {
    models.teacher.softcap = 2 * *c.softcap;
  }
  if (c.excludes) {
    // Positive hidden states times rows of -inf.
    models.teacher.hidden.abs_();
    models.teacher.weight.narrow(0, 0, c.vocabulary / 2).fill_(-std::numeric_limits<double>::infinity());
    models.teacher.weight.select(0, c.vocabulary - 1).fill_(-std::numeric_limits<double>::infinity());
  }
  return models;
}

// This rank's rows of both heads, and its own leaves.
struct Own {
  VocabularyPart part;
  at::Tensor hidden, weight;
  ops::TeacherHead teacher;

  Own(const Models& models, const mesh::Group& tp)
      : part{.size = models.weight.size(0), .rows = {chunk({0, models.weight.size(0)}, tp.rank(), tp.size())}},
        hidden(models.hidden.detach().clone().requires_grad_()),
        weight(rows_of(models.weight).requires_grad_()),
        teacher{
            .hidden = models.teacher.hidden,
            .weight = rows_of(models.teacher.weight),
            .softcap = models.teacher.softcap} {}
  at::Tensor rows_of(const at::Tensor& weights) const {
    return weights.detach().narrow(0, part.rows[0].begin, part.rows[0].size()).clone();
  }
};

void expect_gradients(const Own& own, const Models& models, const mesh::Group& tp) {
  at::Tensor sum = own.hidden.grad().clone();
  tp.all_reduce(sum);
  test::expect_near("hidden's gradient", sum, models.hidden.grad(), models.hidden.grad());
  test::expect_near("weight's gradient", own.weight.grad(), own.rows_of(models.weight.grad()), models.weight.grad());
}

class VocabParallelKl : public ::testing::TestWithParam<Case> {};

// 4 ranks of 3 rows: the last has none. 4000 x 5000 logits of both, of 8 bytes, are several chunks even on a rank with
// a quarter.
INSTANTIATE_TEST_SUITE_P(
    Cases,
    VocabParallelKl,
    ::testing::Values(
        Case{12, 11, 1, 0},
        Case{12, 11, 1, 0.3},
        Case{12, 11, 1.7, 0.3},
        Case{12, 3, 1.7, 0.3},
        Case{12, 10, 1.3, 0, true},
        Case{12, 11, 1.7, 0.3, false, 0.8},
        Case{4000, 5000, 1.3, 0.2}));

TEST_P(VocabParallelKl, EqualsOneDevice) {
  const Models models = models_of(GetParam());
  const ops::LinearKlOptions options{
      .temperature = GetParam().temperature,
      .kl_weight = 0.7,
      .nll_weight = GetParam().nll_weight,
      .softcap = GetParam().softcap};
  const ops::LinearKl expected = ops::linear_kl(models.hidden, models.weight, models.teacher, models.labels, options);
  (expected.loss * models.factor).sum().backward();
  for (const int64_t ranks : {2, 4}) {
    test::on_mesh({.tensor_parallel = ranks}, [&](DistributedContext& context) {
      const mesh::Group& tp = context.group(mesh::axis::tp);
      const Own own(models, tp);
      const ops::LinearKl found =
          vocab_parallel_linear_kl(own.hidden, own.weight, own.teacher, models.labels, own.part, tp, options);
      (found.loss * models.factor).sum().backward();
      test::expect_near("loss", found.loss, expected.loss, expected.loss);
      test::expect_near("kl", found.kl, expected.kl, expected.kl);
      test::expect_near("nll", found.nll, expected.nll, expected.nll);
      EXPECT_TRUE(at::equal(found.agrees, expected.agrees));
      EXPECT_FALSE(found.kl.requires_grad());
      expect_gradients(own, models, tp);
    });
  }
}

TEST(VocabParallelKl, OnAGpuReadsNoLabel) {
  const Models models = models_of({.rows = 12, .vocabulary = 10, .temperature = 1.3, .nll_weight = 0.2});
  const ops::LinearKlOptions options{.temperature = 1.3, .nll_weight = 0.2};
  const ops::LinearKl expected = ops::linear_kl(models.hidden, models.weight, models.teacher, models.labels, options);
  (expected.loss * models.factor).sum().backward();
  test::on_mesh({.tensor_parallel = 2}, [&](DistributedContext& context) {
    const ops::cuda::TableScope gpu(ops::test::host_table(), at::kCPU);
    const mesh::Group& tp = context.group(mesh::axis::tp);
    const Own own(models, tp);
    ops::LinearKl found;
    {
      const ops::test::WatchReads watch;
      found = vocab_parallel_linear_kl(own.hidden, own.weight, own.teacher, models.labels, own.part, tp, options);
      (found.loss * models.factor).sum().backward();
    }
    EXPECT_THAT(ops::test::WatchReads::reads(), testing::IsEmpty());
    test::expect_near("loss", found.loss, expected.loss, expected.loss);
    expect_gradients(own, models, tp);

    at::Tensor wrong = models.labels.clone();
    wrong[0] = 10;
    const ops::LinearKl told =
        vocab_parallel_linear_kl(own.hidden, own.weight, own.teacher, wrong, own.part, tp, options);
    EXPECT_TRUE(told.loss[0].isnan().item<bool>() && told.kl[0].isnan().item<bool>());
    EXPECT_TRUE(at::equal(told.loss.narrow(0, 1, 11), found.loss.narrow(0, 1, 11)));
  });
}

TEST(VocabParallelKl, RefusesATeacherWithOtherRows) {
  const Models models = models_of({.rows = 12, .vocabulary = 10, .temperature = 1, .nll_weight = 0});
  test::on_mesh({.tensor_parallel = 2}, [&](DistributedContext& context) {
    const mesh::Group& tp = context.group(mesh::axis::tp);
    const Own own(models, tp);
    EXPECT_THROW(vocab_parallel_linear_kl(own.hidden, own.weight, models.teacher, models.labels, own.part, tp), Error);
  });
}

}  // namespace
}  // namespace lehr::shard
