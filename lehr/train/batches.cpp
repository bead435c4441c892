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

Batch batch_of(data::ClassificationBatch&& batch) {
  return {
      {"input_ids", batch.input_ids},
      {"attention_mask", batch.attention_mask},
      {"pooling_mask", batch.pooling_mask},
      {"labels", batch.labels}};
}

Batch batch_of(data::TokenClassificationBatch&& batch) {
  return {
      {"input_ids", batch.input_ids},
      {"position_ids", batch.position_ids},
      {"attention_mask", batch.attention_mask},
      {"labels", batch.labels}};
}

Batch batch_of(data::PairsBatch&& batch) {
  return {
      {"input_ids", batch.input_ids},
      {"attention_mask", batch.attention_mask},
      {"pooling_mask", batch.pooling_mask},
      {"valid", batch.valid}};
}

template <class Loader>
class ExampleStream : public BatchStream {
 public:
  template <class... Args>
  explicit ExampleStream(const Args&... args) : loader_(args...) {}

  std::optional<Batch> next() override {
    auto batch = loader_.next();
    return batch ? std::optional(batch_of(std::move(*batch))) : std::nullopt;
  }

 private:
  Loader loader_;
};

// The plan of examples that take `texts` sequences each.
data::BatchPlan plan_of_examples(data::BatchPlan plan, int64_t texts) {
  require(
      plan.global_batch_size % texts == 0 && plan.first_row % texts == 0 && plan.num_rows % texts == 0,
      "data: each example takes {} sequences, but a rank would have sequences [{}, {}) of {}",
      texts,
      plan.first_row,
      plan.first_row + plan.num_rows,
      plan.global_batch_size);
  plan.start = (plan.start + texts - 1) / texts;  // the data may have had examples of another size before
  for (int64_t* count : {&plan.global_batch_size, &plan.first_row, &plan.num_rows}) {
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

RunData serve_language(const data::LanguageData& opened, const data::PrefetchOptions& prefetch) {
  RunData run;
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

// Streams of examples that take `texts` sequences each. `make` opens one from a dataset, its order and a plan of
// examples, for training steps or for one pass.
template <class Dataset, class Make>
RunData serve_examples(
    const data::Examples<Dataset>& opened, const data::SampleOrder::Options& order, int64_t texts, const Make& make) {
  RunData run;
  run.fingerprint = opened.train->fingerprint(order);
  run.num_train_rows = order.repeat ? std::nullopt : std::optional(opened.train->size() * texts);
  run.train = [=, train = opened.train](const RowShare& rows, int64_t start) {
    require(
        order.repeat || train->size() * texts >= rows.global,
        "data: one pass has {} sequences, fewer than one global batch of {}. Set data.repeat = true, or reduce "
        "training.global_batch_size",
        train->size() * texts,
        rows.global);
    return make(train, order, plan_of_examples(plan_of(rows, start, true), texts), /*steps=*/true);
  };
  run.train_once = [=, train = opened.train](const RowShare& rows, std::optional<int64_t> max_rows) {
    require(  // unlike for held-out data, the config is not checked for it, since few commands read these
        rows.count % texts == 0,
        "validation.local_batch_size: each example takes {} sequences, so expected a multiple of {}, found {}",
        texts,
        texts,
        rows.count);
    return make(train, order, plan_of_examples(plan_of(rows, 0, false, max_rows), texts), /*steps=*/false);
  };
  if (opened.validation) {
    run.num_validation_rows = opened.validation->size() * texts;
    run.validation = [=, held_out = opened.validation](const RowShare& rows, std::optional<int64_t> max_rows) {
      const data::SampleOrder::Options as_stored{.shuffle = false, .repeat = false};
      const RowShare wanted = fitting(rows, held_out->size() * texts);
      return make(held_out, as_stored, plan_of_examples(plan_of(wanted, 0, false, max_rows), texts), /*steps=*/false);
    };
  }
  return run;
}

template <class Loader, class Dataset>
RunData serve_labels(
    const data::Examples<Dataset>& opened,
    const data::SampleOrder::Options& order,
    int64_t num_labels,
    const data::PrefetchOptions& prefetch) {
  for (const auto& [dataset, name] :
       {std::pair(opened.train, "the data"), std::pair(opened.validation, "data.validation_path")}) {
    require(
        !dataset || dataset->num_labels() <= num_labels,
        "training.num_labels: expected at least {}, the number of labels in {}, found {}, that of the model",
        dataset ? dataset->num_labels() : 0,
        name,
        num_labels);
  }
  return serve_examples(
      opened, order, 1, [prefetch](const auto& dataset, const auto& sorted, const data::BatchPlan& plan, bool) {
        return std::make_unique<ExampleStream<Loader>>(dataset, sorted, plan, prefetch);
      });
}

// In training steps the examples of a micro-batch of all ranks are consecutive.
RunData serve_pairs(
    const data::Examples<data::PairsDataset>& opened,
    const data::SampleOrder::Options& order,
    int64_t texts,
    int64_t microbatch,
    const data::PrefetchOptions& prefetch) {
  return serve_examples(
      opened, order, texts, [=](const auto& dataset, const auto& sorted, const data::BatchPlan& plan, bool steps) {
        const std::optional<int64_t> together = steps ? std::optional(microbatch) : std::nullopt;
        const int64_t of_all = microbatch * (plan.global_batch_size / plan.num_rows);
        require(
            !steps || dataset->size() >= of_all,
            "training.local_batch_size: {} pairs run at once on all ranks, but the data has {}, so a pair would be its own "
            "negative; expected at most {} sequences over all data-parallel ranks",
            of_all,
            dataset->size(),
            dataset->size() * texts);
        return std::make_unique<ExampleStream<data::PairsLoader>>(dataset, sorted, plan, together, prefetch);
      });
}

void check_kind_of_data(const TrainConfig& config) {
  struct Kind {
    TaskKind task;
    data::DatasetKind data;
    const char* name;
  };
  for (const auto& [task, kind, name] :
       {Kind{TaskKind::classification, data::DatasetKind::classification, "classification"},
        Kind{TaskKind::token_classification, data::DatasetKind::token_classification, "token_classification"},
        Kind{TaskKind::embedding, data::DatasetKind::pairs, "pairs"}}) {
    const bool wanted = config.training.task == task;
    require(
        config.data.has(kind) == wanted,
        "data.datasets: training.task is {}, so the data must {} of kind \"{}\"",
        name_of(config.training.task),
        wanted ? "be" : "not be",
        name);
  }
}
}  // namespace

ModelIds ModelIds::of(const descriptor::ModelArgs& args) {
  return {.vocab_size = args.vocab_size(), .pad_token_id = args.pad_token_id()};
}

RunData open_run_data(
    const TrainConfig& config,
    const data::Tokenizer& tokenizer,
    const ModelIds& model,
    const std::function<void(const std::string&)>& inform) {
  check_kind_of_data(config);
  const auto seed = static_cast<uint64_t>(config.data.seed.value_or(config.debug.seed));
  const data::OpenDataOptions options{
      .seq_len = config.training.seq_len,
      .vocab_size = model.vocab_size,
      .pad_token_id = model.pad_token_id,
      .seed = seed,
      .cache_folder = std::filesystem::path(config.job.dump_folder) / "cache",
      .inform = inform,
      .chat_template = config.data.has(data::DatasetKind::chat) ? chat_template_of(config) : nullptr};
  const data::PrefetchOptions prefetch{.num_workers = config.data.num_workers, .depth = config.data.prefetch};
  const data::SampleOrder::Options order{.seed = seed, .shuffle = config.data.shuffle, .repeat = config.data.repeat};
  const TrainingConfig& training = config.training;
  switch (training.task) {
    case TaskKind::classification:
      return serve_labels<data::ClassificationLoader>(
          data::open_classification(config.data, tokenizer, options), order, training.num_labels, prefetch);
    case TaskKind::token_classification:
      return serve_labels<data::TokenClassificationLoader>(
          data::open_token_classification(config.data, tokenizer, options), order, training.num_labels, prefetch);
    case TaskKind::embedding: {
      const int64_t texts = config.data.rows_per_example();
      return serve_pairs(
          data::open_pairs(config.data, tokenizer, options), order, texts, training.local_batch_size / texts, prefetch);
    }
    case TaskKind::causal_lm:
    case TaskKind::sft:
      break;
  }
  return serve_language(data::open_data(config.data, tokenizer, options), prefetch);
}

}  // namespace lehr::train
