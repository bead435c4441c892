// Loaders: the same sequences whatever the number of ranks and threads, and however often a run is interrupted.
#include "lehr/data/loader.h"

#include <ATen/ops/cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "test/data/support.h"

namespace lehr::data {
namespace {

using testing::HasSubstr;

std::shared_ptr<const RowDataset> mixed_dataset(bool repeat = true) {
  std::mt19937 random(7);
  std::vector<MixedDataset::Part> parts;
  for (const double weight : {1.0, 2.5}) {
    std::vector<std::vector<int32_t>> documents;
    for (int i = 0; i < 60; ++i) {
      auto& document = documents.emplace_back(1 + random() % 30);
      for (auto& id : document) {
        id = static_cast<int32_t>(random() % 1000);
      }
    }
    parts.push_back({PackedRows(stream_of(documents), {.seq_len = 16}), repeat ? weight : 1.0});
  }
  return std::make_shared<MixedDataset>(std::move(parts), SampleOrder::Options{.seed = 5, .repeat = repeat});
}

void expect_same(const Batch& a, const Batch& b) {
  EXPECT_TRUE(a.input_ids.equal(b.input_ids));
  EXPECT_TRUE(a.labels.equal(b.labels));
  EXPECT_TRUE(a.position_ids.equal(b.position_ids));
  EXPECT_TRUE(a.document_ids.equal(b.document_ids));
  EXPECT_EQ(a.num_valid_tokens, b.num_valid_tokens);
  EXPECT_EQ(a.has_packing, b.has_packing);
}

TEST(BatchLoader, RanksTogetherReturnTheGlobalBatchOfOneRank) {
  const auto dataset = mixed_dataset();
  for (const int64_t ranks : {1, 2, 3, 6, 12}) {
    BatchLoader whole(dataset, batch_plan_of_rank(12, 0, 1));
    std::vector<std::unique_ptr<BatchLoader>> loaders;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      loaders.push_back(std::make_unique<BatchLoader>(
          dataset, batch_plan_of_rank(12, rank, ranks), PrefetchOptions{.num_workers = rank % 3}));
    }
    for (int step = 0; step < 15; ++step) {
      const Batch expected = *whole.next();
      std::vector<at::Tensor> ids, labels;
      int64_t valid = 0;
      for (const auto& loader : loaders) {
        const Batch batch = *loader->next();
        ids.push_back(batch.input_ids);
        labels.push_back(batch.labels);
        valid += batch.num_valid_tokens;
      }
      ASSERT_TRUE(at::cat(ids).equal(expected.input_ids));
      ASSERT_TRUE(at::cat(labels).equal(expected.labels));
      ASSERT_EQ(valid, expected.num_valid_tokens);
    }
  }
}

TEST(BatchLoader, ResumesAtAnyStepWithAnyNumberOfThreads) {
  const auto dataset = mixed_dataset();
  std::mt19937 random(1);
  std::vector<Batch> run;
  BatchLoader uninterrupted(dataset, batch_plan_of_rank(4, 0, 1));
  for (int step = 0; step < 60; ++step) {
    run.push_back(*uninterrupted.next());
  }
  for (int trial = 0; trial < 12; ++trial) {
    const auto start = static_cast<int64_t>(random() % 50);
    BatchLoader resumed(
        dataset, batch_plan_of_rank(4, 0, 1, 4 * start), {.num_workers = trial % 5, .depth = 1 + trial % 3});
    for (int64_t step = start; step < start + 10; ++step) {
      expect_same(*resumed.next(), run[step]);
    }
  }
}

TEST(BatchLoader, ContinuesAtAnySampleWithAnotherBatchSize) {
  for (const bool repeat : {true, false}) {
    const auto dataset = mixed_dataset(repeat);
    BatchLoader one_by_one(dataset, batch_plan_of_rank(1, 0, 1));
    std::vector<at::Tensor> rows;
    for (int64_t i = 0; i < 40; ++i) {
      rows.push_back(one_by_one.next()->input_ids);
    }
    BatchLoader threes(dataset, batch_plan_of_rank(3, 0, 1, 7), {.num_workers = 2});
    for (size_t at = 7; at + 3 <= rows.size(); at += 3) {
      ASSERT_TRUE(threes.next()->input_ids.equal(at::cat({rows[at], rows[at + 1], rows[at + 2]})));
    }
  }
}

TEST(BatchLoader, FiniteDataEndsAtTheSameSampleWhereverItStarts) {
  const auto dataset = mixed_dataset(false);
  const int64_t rows = *dataset->size();
  for (const int64_t start : {int64_t{5}, rows - 9, rows - 8, rows - 1, rows, rows + 3}) {
    BatchLoader loader(dataset, batch_plan_of_rank(8, 0, 1, start));
    int64_t steps = 0;
    for (; loader.next(); ++steps) {
    }
    EXPECT_EQ(steps, std::max<int64_t>(rows - start, 0) / 8) << start;
  }
}

TEST(BatchLoader, DescribesItsBatches) {
  const auto dataset = std::make_shared<MixedDataset>(
      std::vector<MixedDataset::Part>{{PackedRows(stream_of({{1, 2, 3, 4, 5}, {6, 7}}), {.seq_len = 4})}},
      SampleOrder::Options{.shuffle = false, .repeat = false});
  BatchLoader loader(dataset, {.global_batch_size = 1, .num_rows = 1});
  const Batch first = *loader.next(), second = *loader.next();
  EXPECT_EQ(first.input_ids.sizes(), (std::vector<int64_t>{1, 4}));
  EXPECT_EQ(first.labels.scalar_type(), at::kLong);
  EXPECT_FALSE(first.has_packing);
  EXPECT_EQ(first.num_valid_tokens, 4);
  EXPECT_TRUE(second.has_packing);  // 5 | 6 7 | padding
  EXPECT_EQ(second.num_valid_tokens, 1);
  EXPECT_EQ(second.step, 1);
  EXPECT_FALSE(loader.next());
}

// What padding attends to, and so the expert that it is routed to, must not depend on the batch's other sequences.
TEST(BatchLoader, KeepsTheDocumentIdsOfASingleDocumentWithPadding) {
  const auto dataset = std::make_shared<MixedDataset>(
      std::vector<MixedDataset::Part>{{PackedRows(stream_of({{1, 2, 3}}), {.seq_len = 4, .packing = Packing::whole})}},
      SampleOrder::Options{.shuffle = false, .repeat = false});
  const Batch batch = *BatchLoader(dataset, {.global_batch_size = 1, .num_rows = 1}).next();
  EXPECT_TRUE(batch.has_packing);
  EXPECT_TRUE(batch.document_ids.equal(at::tensor({0, 0, 0, -1}, at::kLong).view({1, 4})));
}

TEST(BatchLoader, FiniteDataEndsAndItsLastBatchIsDroppedOrPadded) {
  const auto dataset = mixed_dataset(false);
  const int64_t rows = *dataset->size();
  const int64_t global = 8;
  ASSERT_NE(rows % global, 0);
  for (const bool drop : {true, false}) {
    int64_t steps = 0, valid = 0;
    for (int64_t rank = 0; rank < 2; ++rank) {
      BatchPlan plan = batch_plan_of_rank(global, rank, 2);
      plan.drop_last = drop;
      BatchLoader loader(dataset, plan, {.num_workers = 2});
      while (const auto batch = loader.next()) {
        EXPECT_EQ(batch->input_ids.size(0), 4);
        valid += batch->num_valid_tokens;
        ++steps;
      }
      EXPECT_FALSE(loader.next());
    }
    EXPECT_EQ(steps, 2 * *num_steps(rows, global, drop));
    EXPECT_EQ(steps, 2 * (drop ? rows / global : rows / global + 1));
    int64_t expected = 0;
    for (int64_t i = 0; i < (drop ? rows / global * global : rows); ++i) {
      const Sample sample = dataset->sample_at(i);
      expected += 16 - std::count(sample.labels.begin(), sample.labels.end(), kNoLabel);
    }
    EXPECT_EQ(valid, expected);
  }
}

/// Throws for one sequence, with a message that names it.
class FailingDataset : public RowDataset {
 public:
  int64_t seq_len() const override { return 2; }
  std::optional<int64_t> size() const override { return std::nullopt; }
  void fill(int64_t index, const RowSpan& out) const override {
    require(index != 7, "row {} is broken", index);
    fill_padding(2, 0, out);
  }
};

TEST(BatchLoader, AnErrorInAThreadIsThrownAtItsStep) {
  for (const int64_t workers : {0, 3}) {
    BatchLoader loader(
        std::make_shared<FailingDataset>(), {.global_batch_size = 2, .num_rows = 2}, {.num_workers = workers});
    for (int step = 0; step < 3; ++step) {
      EXPECT_EQ(loader.next()->step, step);
    }
    EXPECT_EQ(usage_error_of([&] { loader.next(); }), "row 7 is broken");
    EXPECT_EQ(usage_error_of([&] { loader.next(); }), "row 7 is broken");
  }
}

TEST(BatchLoader, MayBeDestroyedAtAnyTime) {
  const auto dataset = mixed_dataset();
  for (int trial = 0; trial < 100; ++trial) {
    BatchLoader loader(dataset, batch_plan_of_rank(4, 0, 1), {.num_workers = 1 + trial % 4, .depth = 2});
    for (int step = 0; step < trial % 4; ++step) {
      loader.next();
    }
  }
}

TEST(BatchLoader, DataForLessThanOneStepIsAnError) {
  const auto dataset = mixed_dataset(false);
  EXPECT_THAT(
      usage_error_of([&] { BatchLoader(dataset, batch_plan_of_rank(10000, 0, 1)); }),
      HasSubstr("fewer than one global batch of 10000"));
}

TEST(BatchLoader, InvalidPlansAreErrors) {
  EXPECT_THAT(
      usage_error_of([] { BatchLoader(mixed_dataset(), {.global_batch_size = 4, .first_row = 2, .num_rows = 3}); }),
      HasSubstr("sequences [2, 5) of a global batch of 4"));
}

}  // namespace
}  // namespace lehr::data
