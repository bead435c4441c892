#include "lehr/train/batches.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/data/loader.h"
#include "lehr/data/open_data.h"
#include "lehr/train/chat.h"

namespace lehr::train {

namespace {
class LanguageStream : public BatchStream {
 public:
  LanguageStream(
      std::shared_ptr<const data::RowDataset> dataset,
      const data::BatchPlan& plan,
      const data::PrefetchOptions& prefetch)
      : loader_(std::move(dataset), plan, prefetch) {}

  std::optional<Batch> next() override {
    auto batch = loader_.next();
    if (!batch) {
      return std::nullopt;
    }
    Batch tensors{{"input_ids", batch->input_ids}, {"labels", batch->labels}, {"position_ids", batch->position_ids}};
    if (batch->has_packing) {
      tensors["document_ids"] = batch->document_ids;
    }
    return tensors;
  }

 private:
  data::BatchLoader loader_;
};

class ClassificationStream : public BatchStream {
 public:
  ClassificationStream(
      std::shared_ptr<const data::ClassificationDataset> dataset,
      const data::SampleOrder::Options& order,
      const data::BatchPlan& plan,
      const data::PrefetchOptions& prefetch)
      : loader_(std::move(dataset), order, plan, prefetch) {}

  std::optional<Batch> next() override {
    auto batch = loader_.next();
    if (!batch) {
      return std::nullopt;
    }
    return Batch{
        {"input_ids", batch->input_ids},
        {"attention_mask", batch->attention_mask},
        {"pooling_mask", batch->pooling_mask},
        {"labels", batch->labels}};
  }

 private:
  data::ClassificationLoader loader_;
};

// Counts sequences like the others; its dataset counts examples.
class PairsStream : public BatchStream {
 public:
  PairsStream(
      std::shared_ptr<const data::PairsDataset> dataset,
      const data::SampleOrder::Options& order,
      const data::BatchPlan& plan,
      std::optional<int64_t> microbatch,
      const data::PrefetchOptions& prefetch)
      : loader_(dataset, order, plan, microbatch, prefetch) {}

  std::optional<Batch> next() override {
    auto batch = loader_.next();
    if (!batch) {
      return std::nullopt;
    }
    return Batch{
        {"input_ids", batch->input_ids},
        {"attention_mask", batch->attention_mask},
        {"pooling_mask", batch->pooling_mask},
        {"valid", batch->valid}};
  }

 private:
  data::PairsLoader loader_;
};

// The plan of examples that take `texts` sequences each.
data::BatchPlan plan_of_examples(data::BatchPlan plan, int64_t texts) {
  require(
      plan.global_batch_size % texts == 0 && plan.first_row % texts == 0 && plan.num_rows % texts == 0 &&
          plan.start % texts == 0,
      "data: each example takes {} sequences, but a rank would have sequences [{}, {}) of {} from {} on",
      texts,
      plan.first_row,
      plan.first_row + plan.num_rows,
      plan.global_batch_size,
      plan.start);
  for (int64_t* count : {&plan.global_batch_size, &plan.first_row, &plan.num_rows, &plan.start}) {
    *count /= texts;
  }
  if (plan.max_rows) {
    plan.max_rows = std::max<int64_t>(*plan.max_rows / texts, 1);
  }
  return plan;
}

// Training steps are never padded; validation reads all held-out sequences.
data::BatchPlan plan_of(
    const RowShare& rows, int64_t start, bool drop_last, std::optional<int64_t> max_rows = std::nullopt) {
  return {
      .global_batch_size = rows.global,
      .first_row = rows.first,
      .num_rows = rows.count,
      .start = start,
      .drop_last = drop_last,
      .max_rows = max_rows};
}

// Limits the count to the existing sequences, since the rest would be padding. Only if one rank takes all, so that
// shares stay even.
RowShare fitting(const RowShare& rows, int64_t size) {
  return rows.count == rows.global && size > 0 ? RowShare::all(std::min(rows.global, size)) : rows;
}

data::PrefetchOptions prefetch_of(const TrainConfig& config) {
  return {.num_workers = config.data.num_workers, .depth = config.data.prefetch};
}

RunData open_language(
    const TrainConfig& config, const data::Tokenizer& tokenizer, const data::OpenDataOptions& options) {
  const data::PrefetchOptions prefetch = prefetch_of(config);
  RunData run;
  const data::LanguageData opened = data::open_data(config.data, tokenizer, options);
  run.fingerprint = opened.train->fingerprint();
  run.num_train_rows = opened.train->size();
  run.train = [train = opened.train, prefetch](const RowShare& rows, int64_t start) {
    return std::make_unique<LanguageStream>(train, plan_of(rows, start, true), prefetch);
  };
  run.train_once = [train = opened.train, prefetch](const RowShare& rows, std::optional<int64_t> max_rows) {
    return std::make_unique<LanguageStream>(train, plan_of(rows, 0, false, max_rows), prefetch);
  };
  if (opened.validation) {
    run.num_validation_rows = opened.validation->size().value_or(0);
    run.validation = [validation = opened.validation, prefetch](const RowShare& rows, std::optional<int64_t> max_rows) {
      const RowShare wanted = fitting(rows, validation->size().value_or(rows.global));
      return std::make_unique<LanguageStream>(validation, plan_of(wanted, 0, false, max_rows), prefetch);
    };
  }
  return run;
}

data::SampleOrder::Options order_of(const TrainConfig& config, const data::OpenDataOptions& options) {
  return {.seed = options.seed, .shuffle = config.data.shuffle, .repeat = config.data.repeat};
}

constexpr data::SampleOrder::Options kHeldOut{.shuffle = false, .repeat = false};

RunData open_labels(const TrainConfig& config, const data::Tokenizer& tokenizer, const data::OpenDataOptions& options) {
  const data::PrefetchOptions prefetch = prefetch_of(config);
  RunData run;
  const data::ClassificationData opened = data::open_classification(config.data, tokenizer, options);
  require(
      opened.train->num_labels() <= config.training.num_labels,
      "training.num_labels: expected at least {}, the number of labels in the data, found {}",
      opened.train->num_labels(),
      config.training.num_labels);
  require(
      !opened.validation || opened.validation->num_labels() <= config.training.num_labels,
      "training.num_labels: expected at least {}, the number of labels in data.validation_path, found {}",
      opened.validation ? opened.validation->num_labels() : 0,
      config.training.num_labels);
  const data::SampleOrder::Options order = order_of(config, options);
  run.fingerprint = opened.train->fingerprint(order);
  run.num_train_rows = order.repeat ? std::nullopt : std::optional(opened.train->size());
  run.train = [train = opened.train, order, prefetch](const RowShare& rows, int64_t start) {
    return std::make_unique<ClassificationStream>(train, order, plan_of(rows, start, true), prefetch);
  };
  run.train_once = [train = opened.train, order, prefetch](const RowShare& rows, std::optional<int64_t> max_rows) {
    return std::make_unique<ClassificationStream>(train, order, plan_of(rows, 0, false, max_rows), prefetch);
  };
  if (opened.validation) {
    run.num_validation_rows = opened.validation->size();
    run.validation = [validation = opened.validation, prefetch](const RowShare& rows, std::optional<int64_t> max_rows) {
      return std::make_unique<ClassificationStream>(
          validation, kHeldOut, plan_of(fitting(rows, validation->size()), 0, false, max_rows), prefetch);
    };
  }
  return run;
}

RunData open_pairs(const TrainConfig& config, const data::Tokenizer& tokenizer, const data::OpenDataOptions& options) {
  const data::PrefetchOptions prefetch = prefetch_of(config);
  const data::PairsData opened = data::open_pairs(config.data, tokenizer, options);
  const data::SampleOrder::Options order = order_of(config, options);
  const int64_t texts = config.data.rows_per_example(), together = config.training.local_batch_size / texts;
  RunData run;
  run.fingerprint = opened.train->fingerprint(order);
  run.num_train_rows = order.repeat ? std::nullopt : std::optional(opened.train->size() * texts);
  run.train = [train = opened.train, order, prefetch, texts, together](const RowShare& rows, int64_t start) {
    return std::make_unique<PairsStream>(
        train, order, plan_of_examples(plan_of(rows, start, true), texts), together, prefetch);
  };
  const auto once = [prefetch, texts](
                        const auto& dataset, const auto& sorted, const RowShare& rows, std::optional<int64_t> most) {
    return std::make_unique<PairsStream>(
        dataset, sorted, plan_of_examples(plan_of(rows, 0, false, most), texts), std::nullopt, prefetch);
  };
  run.train_once = [train = opened.train, order, once](const RowShare& rows, std::optional<int64_t> max_rows) {
    return once(train, order, rows, max_rows);
  };
  if (opened.validation) {
    run.num_validation_rows = opened.validation->size() * texts;
    run.validation = [validation = opened.validation, once, texts](
                         const RowShare& rows, std::optional<int64_t> max_rows) {
      return once(validation, kHeldOut, fitting(rows, validation->size() * texts), max_rows);
    };
  }
  return run;
}
}  // namespace

RunData open_run_data(
    const TrainConfig& config,
    const data::Tokenizer& tokenizer,
    int64_t vocab_size,
    const std::function<void(const std::string&)>& inform) {
  const TaskKind task = config.training.task;
  const bool classification = task == TaskKind::classification;
  require(
      config.data.is_classification() == classification,
      "data.datasets: training.task is {}, so the data must {} of kind \"classification\"",
      classification                ? "classification"
      : task == TaskKind::embedding ? "embedding"
      : task == TaskKind::sft       ? "sft"
                                    : "causal_lm",
      classification ? "be" : "not be");
  const auto seed = static_cast<uint64_t>(config.data.seed.value_or(config.debug.seed));
  const data::OpenDataOptions options{
      .seq_len = config.training.seq_len,
      .vocab_size = vocab_size,
      .seed = seed,
      .cache_folder = std::filesystem::path(config.job.dump_folder) / "cache",
      .inform = inform,
      .chat_template = config.data.has_chat() ? chat_template_of(config) : nullptr};
  return classification                ? open_labels(config, tokenizer, options)
         : task == TaskKind::embedding ? open_pairs(config, tokenizer, options)
                                       : open_language(config, tokenizer, options);
}

}  // namespace lehr::train
