// Embeddings and heads over a sharded vocabulary equal one device, forward and backward.
#include "lehr/shard/vocab_parallel.h"

#include <gmock/gmock.h>

#include "lehr/ops/cuda.h"
#include "lehr/ops/linear_cross_entropy/linear_cross_entropy.h"
#include "lehr/shard/vocab_parallel_loss.h"
#include "test/ops/host_launch.h"
#include "test/ops/watch_reads.h"
#include "test/shard/one_device.h"

namespace lehr::shard {
namespace {

using mesh::DistributedContext;
using testing::HasSubstr;

constexpr int64_t kBatch = 3, kTokens = 8, kHidden = 6;

// On 4 ranks "base" is split into 4, 4, 4 and 1 rows, "added" into 1, 1, 0 and 0.
nn::SplitVocabulary uneven() {
  return {.sizes = {{"base", 13}, {"added", 2}}, .order = {"base", "added"}};
}
nn::SplitVocabulary whole() {
  return {.sizes = {{"default", 17}}, .order = {"default"}};
}

// Embeddings, and a head on their output.
class EmbedAndScoreImpl : public nn::Module {
 public:
  EmbedAndScoreImpl(const nn::SplitVocabulary& vocabulary, bool tied)
      : embeddings(register_module("embeddings", nn::SplitTokenEmbeddings(vocabulary, kHidden))),
        head(register_module("head", nn::SplitLanguageModellingHead(vocabulary, kHidden))) {
    if (tied) {
      head->tie_to(*embeddings);
    }
  }
  void lay_out(DistributedContext& context) {
    vocab_parallel(*embeddings, context);
    vocab_parallel(*head, context);
  }

  nn::SplitTokenEmbeddings embeddings;
  nn::SplitLanguageModellingHead head;
};
LEHR_MODULE(EmbedAndScore);

struct Batch {
  at::Tensor ids, labels, loss_weight, hidden_factor;
};
Batch make_batch(int64_t vocabulary) {
  at::manual_seed(5);
  Batch batch{
      .ids = at::randint(vocabulary, {kBatch, kTokens}),
      .labels = at::randint(vocabulary, {kBatch, kTokens}),
      .loss_weight = at::rand({kBatch, kTokens}, at::kDouble),
      .hidden_factor = at::randn({kBatch, kTokens, kHidden}, at::kDouble)};
  batch.labels.select(1, 2).fill_(nn::kIgnoreIndex);
  batch.ids.select(1, 0).fill_(vocabulary - 1);  // the last row of the last segment
  batch.labels.select(1, 1).fill_(vocabulary - 1);
  return batch;
}

void expect_equal_to_one_device(const nn::SplitVocabulary& vocabulary, bool tied) {
  const Batch batch = make_batch(vocabulary.size());
  EmbedAndScore expected(vocabulary, tied);
  test::make_real(*expected);
  const at::Tensor expected_hidden = expected->embeddings(batch.ids);
  const at::Tensor expected_losses = expected->head(expected_hidden * batch.hidden_factor, batch.labels);
  (expected_losses * batch.loss_weight).sum().backward();
  const at::Tensor expected_logits = expected->head->logits(expected_hidden);
  for (const int64_t ranks : {2, 4}) {
    test::on_mesh({.tensor_parallel = ranks}, [&](DistributedContext& context) {
      EmbedAndScore model(vocabulary, tied);
      model->lay_out(context);
      test::make_real(*model);
      test::expect_same_values(*model, *expected);
      const at::Tensor hidden = model->embeddings(batch.ids);
      EXPECT_TRUE(at::equal(hidden, test::sequence_part(expected_hidden, context)));  // only zeros are added
      const at::Tensor losses = model->head(hidden * test::sequence_part(batch.hidden_factor, context), batch.labels);
      // The loss is replicated on all ranks and counts once; its sum over the ranks would be too large.
      (losses * batch.loss_weight).sum().backward();
      test::expect_near("losses", losses, expected_losses, expected_losses);
      test::expect_same_gradients(*model, *expected, context);
      at::Tensor first = losses.detach().clone();
      context.group(mesh::axis::tp).broadcast(first, 0);
      EXPECT_TRUE(at::equal(first, losses)) << "losses are to be the same bits on all ranks";
      test::expect_near("logits", model->head(hidden, at::Tensor()), expected_logits, expected_logits);
    });
  }
}

TEST(VocabParallel, EmbeddingsAndHeadEqualOneDevice) {
  expect_equal_to_one_device(whole(), false);
}

TEST(VocabParallel, UnevenAndEmptyPartsOfASplitVocabularyEqualOneDevice) {
  expect_equal_to_one_device(uneven(), false);
}

// Multi-token prediction looks up several tokens per position.
TEST(VocabParallel, EmbeddingsOfIdsWithDepthsEqualOneDevice) {
  const at::Tensor ids = make_batch(15).ids, depths = at::stack({ids, ids.flip(1)}, 2);  // (B, T, D)
  EmbedAndScore expected(uneven(), false);
  test::make_real(*expected);
  const at::Tensor expected_hidden = expected->embeddings(depths);
  test::on_mesh({.tensor_parallel = 4}, [&](DistributedContext& context) {
    EmbedAndScore model(uneven(), false);
    model->lay_out(context);
    test::make_real(*model);
    EXPECT_TRUE(at::equal(model->embeddings(depths), test::sequence_part(expected_hidden, context)));
  });
}

TEST(VocabParallel, TiedWeightsGetTheirGradientOnce) {
  expect_equal_to_one_device(whole(), true);
  expect_equal_to_one_device(uneven(), true);
}

// Only the added tokens are trained, and some ranks have none of them: all must still take part in backward.
TEST(VocabParallel, SegmentsCanBeFrozen) {
  const Batch batch = make_batch(15);
  const auto freeze = [](EmbedAndScore& model) {
    model->embeddings->segments[0]->own_parameter("weight")->set_trainable(false);
    model->head->segments[0]->own_parameter("weight")->set_trainable(false);
    model->head->segments[1]->own_parameter("weight")->set_trainable(false);
  };
  EmbedAndScore expected(uneven(), false);
  test::make_real(*expected);
  freeze(expected);
  (expected->head(expected->embeddings(batch.ids), batch.labels) * batch.loss_weight).sum().backward();
  test::on_mesh({.tensor_parallel = 4}, [&](DistributedContext& context) {
    EmbedAndScore model(uneven(), false);
    model->lay_out(context);
    test::make_real(*model);
    freeze(model);
    (model->head(model->embeddings(batch.ids), batch.labels) * batch.loss_weight).sum().backward();
    test::expect_same_gradients(*model, *expected, context);
  });
}

// 9000 x 5000 logits of 8 bytes are several chunks of 64 MiB even if a rank has half of the vocabulary.
TEST(VocabParallel, ManyChunksOfLogitsEqualOneDevice) {
  constexpr int64_t kRows = 9000, kVocabulary = 5000;
  at::manual_seed(6);
  const at::Tensor hidden = at::randn({kRows, 4}, at::kDouble).requires_grad_();
  const at::Tensor weight = at::randn({kVocabulary, 4}, at::kDouble).requires_grad_();
  const at::Tensor labels = at::randint(kVocabulary, {kRows});
  const at::Tensor factor = at::rand({kRows}, at::kDouble);
  const at::Tensor expected = ops::linear_cross_entropy(hidden, weight, labels);
  (expected * factor).sum().backward();
  test::on_mesh({.tensor_parallel = 2}, [&](DistributedContext& context) {
    const mesh::Group& tp = context.group(mesh::axis::tp);
    const VocabularyPart part{.size = kVocabulary, .rows = {chunk({0, kVocabulary}, tp.rank(), 2)}};
    const at::Tensor h = hidden.detach().clone().requires_grad_();
    const at::Tensor w = weight.detach().narrow(0, part.rows[0].begin, part.rows[0].size()).clone().requires_grad_();
    const at::Tensor losses = vocab_parallel_linear_cross_entropy(h, w, labels, part, tp);
    (losses * factor).sum().backward();
    test::expect_near("losses", losses, expected, expected);
    at::Tensor sum = h.grad().clone();
    tp.all_reduce(sum);
    test::expect_near("hidden's gradient", sum, hidden.grad(), hidden.grad());
    const at::Tensor own = weight.grad().narrow(0, part.rows[0].begin, part.rows[0].size());
    test::expect_near("weight's gradient", w.grad(), own, weight.grad());
  });
}

TEST(VocabParallel, LossOfCappedLogitsEqualsOneDevice) {
  constexpr double kCap = 0.8;
  at::manual_seed(9);
  const at::Tensor hidden = at::randn({12, 6}, at::kDouble).requires_grad_();
  const at::Tensor weight = at::randn({10, 6}, at::kDouble).requires_grad_();
  const at::Tensor labels = at::randint(10, {12});
  const at::Tensor factor = at::rand({12}, at::kDouble);
  const at::Tensor expected = ops::linear_cross_entropy(hidden, weight, labels, -100, kCap);
  (expected * factor).sum().backward();
  test::on_mesh({.tensor_parallel = 2}, [&](DistributedContext& context) {
    const mesh::Group& tp = context.group(mesh::axis::tp);
    const VocabularyPart part{.size = 10, .rows = {chunk({0, 10}, tp.rank(), 2)}};
    const at::Tensor h = hidden.detach().clone().requires_grad_();
    const at::Tensor w = weight.detach().narrow(0, part.rows[0].begin, part.rows[0].size()).clone().requires_grad_();
    const at::Tensor losses = vocab_parallel_linear_cross_entropy(h, w, labels, part, tp, -100, kCap);
    (losses * factor).sum().backward();
    test::expect_near("losses", losses, expected, expected);
    at::Tensor sum = h.grad().clone();
    tp.all_reduce(sum);
    test::expect_near("hidden's gradient", sum, hidden.grad(), hidden.grad());
    const at::Tensor own = weight.grad().narrow(0, part.rows[0].begin, part.rows[0].size());
    test::expect_near("weight's gradient", w.grad(), own, weight.grad());
  });
}

// On a GPU the host does not read which labels count, or whether there are any.
TEST(VocabParallel, LossOnAGpuReadsNoLabel) {
  at::manual_seed(8);
  const at::Tensor hidden = at::randn({12, 6}, at::kDouble).requires_grad_();
  const at::Tensor weight = at::randn({10, 6}, at::kDouble).requires_grad_();
  at::Tensor labels = at::randint(10, {12});
  labels.narrow(0, 3, 4).fill_(-100);
  const at::Tensor factor = at::rand({12}, at::kDouble);
  const at::Tensor expected = ops::linear_cross_entropy(hidden, weight, labels);
  (expected * factor).sum().backward();
  test::on_mesh({.tensor_parallel = 2}, [&](DistributedContext& context) {
    const ops::cuda::TableScope gpu(ops::test::host_table(), at::kCPU);
    const mesh::Group& tp = context.group(mesh::axis::tp);
    const VocabularyPart part{.size = 10, .rows = {chunk({0, 10}, tp.rank(), 2)}};
    const at::Tensor h = hidden.detach().clone().requires_grad_();
    const at::Tensor w = weight.detach().narrow(0, part.rows[0].begin, part.rows[0].size()).clone().requires_grad_();
    at::Tensor losses;
    {
      const ops::test::WatchReads watch;
      losses = vocab_parallel_linear_cross_entropy(h, w, labels, part, tp);
      (losses * factor).sum().backward();
    }
    EXPECT_THAT(ops::test::WatchReads::reads(), testing::IsEmpty());
    test::expect_near("losses", losses, expected, expected);
    at::Tensor sum = h.grad().clone();
    tp.all_reduce(sum);
    test::expect_near("hidden's gradient", sum, hidden.grad(), hidden.grad());
    const at::Tensor own = weight.grad().narrow(0, part.rows[0].begin, part.rows[0].size());
    test::expect_near("weight's gradient", w.grad(), own, weight.grad());

    at::Tensor wrong = labels.clone();
    wrong[0] = 10;
    wrong[1] = -7;
    const at::Tensor told = vocab_parallel_linear_cross_entropy(h, w, wrong, part, tp);
    EXPECT_TRUE(told.narrow(0, 0, 2).isnan().all().item<bool>()) << "a wrong label would count as some other";
    EXPECT_TRUE(at::equal(told.narrow(0, 2, 10), losses.narrow(0, 2, 10)));
  });
}

// bfloat16 has 8 bits: its products are rounded by 2^-9 each; the sums are float32.
TEST(VocabParallel, LossOfBfloat16IsFloat32) {
  at::manual_seed(7);
  const at::Tensor hidden = at::randn({20, 16}).to(at::kBFloat16);
  const at::Tensor weight = at::randn({30, 16}).to(at::kBFloat16);
  const at::Tensor labels = at::randint(30, {20});
  const at::Tensor expected = ops::linear_cross_entropy(hidden, weight, labels);
  test::on_mesh({.tensor_parallel = 2}, [&](DistributedContext& context) {
    const mesh::Group& tp = context.group(mesh::axis::tp);
    const VocabularyPart part{.size = 30, .rows = {chunk({0, 30}, tp.rank(), 2)}};
    const at::Tensor h = hidden.clone().requires_grad_();
    const at::Tensor w = weight.narrow(0, 15 * tp.rank(), 15).clone().requires_grad_();
    const at::Tensor losses = vocab_parallel_linear_cross_entropy(h, w, labels, part, tp);
    EXPECT_EQ(losses.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::allclose(losses, expected, 1e-5, 1e-5));
    losses.sum().backward();
    EXPECT_EQ(h.grad().scalar_type(), at::kBFloat16);
    EXPECT_EQ(w.grad().scalar_type(), at::kBFloat16);
  });
}

TEST(VocabParallel, LossOfLogitsThatOverflowIsFinite) {
  const at::Tensor hidden = at::full({2, 1}, 1000.0, at::kDouble);
  const at::Tensor weight = at::arange(4, at::kDouble).view({4, 1});
  const at::Tensor labels = at::tensor({3, 0}, at::kLong);
  test::on_mesh({.tensor_parallel = 2}, [&](DistributedContext& context) {
    const mesh::Group& tp = context.group(mesh::axis::tp);
    const VocabularyPart part{.size = 4, .rows = {chunk({0, 4}, tp.rank(), 2)}};
    const at::Tensor losses =
        vocab_parallel_linear_cross_entropy(hidden, weight.narrow(0, 2 * tp.rank(), 2), labels, part, tp);
    EXPECT_TRUE(at::equal(losses, at::tensor({0.0, 3000.0}, at::kDouble)));
  });
}

TEST(VocabParallel, TokensWithoutLabelsHaveNoLossAndNoGradient) {
  test::on_mesh({.tensor_parallel = 2}, [&](DistributedContext& context) {
    EmbedAndScore model(whole(), false);
    model->lay_out(context);
    test::make_real(*model);
    const at::Tensor hidden = model->embeddings(at::zeros({1, 4}, at::kLong));
    const at::Tensor losses = model->head(hidden, at::full({1, 4}, nn::kIgnoreIndex, at::kLong));
    losses.sum().backward();
    EXPECT_TRUE(at::equal(losses, at::zeros({1, 4}, at::kDouble)));
    const at::Tensor gradient = model->head->segments[0]->weight.grad();
    EXPECT_TRUE(at::equal(gradient, at::zeros_like(gradient)));
  });
}

TEST(VocabParallel, RefusesUnsupportedUses) {
  const auto problem = [](const std::function<void(EmbedAndScore&)>& use) {
    return test::problem_on({.tensor_parallel = 2}, [&](DistributedContext& context) {
      EmbedAndScore model(whole(), false);
      model->lay_out(context);
      test::make_real(*model);
      use(model);
    });
  };
  const at::Tensor hidden = at::ones({1, 2, kHidden}, at::kDouble);
  EXPECT_THAT(
      problem([](EmbedAndScore& model) {
        model->embeddings(at::zeros({1, 5}, at::kLong));
      }),
      HasSubstr("training.seq_len: sequences of 5 tokens cannot be split evenly over "
                "parallelism.tensor_parallel_degree = 2"));
  EXPECT_THAT(
      problem([](EmbedAndScore& model) {
        model->embeddings(at::full({1, 4}, 17, at::kLong));
      }),
      HasSubstr("input_ids: expected ids from 0 to 16, found 17 to 17"));
  EXPECT_THAT(
      problem([&](EmbedAndScore& model) {
        model->head(hidden, at::full({1, 4}, 17, at::kLong));
      }),
      HasSubstr("labels[0]: expected 0 to 16 or -100 (ignored), found 17"));
  EXPECT_THAT(
      test::problem_on(
          {.tensor_parallel = 2},
          [](DistributedContext& context) {
            EmbedAndScore model(whole(), true);
            vocab_parallel(*model->head, context);
          }),
      HasSubstr("tie_word_embeddings: tensor parallelism was applied to the head before its embeddings"));
}

}  // namespace
}  // namespace lehr::shard
