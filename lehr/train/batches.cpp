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

template <class Loader, class Dataset>
class LabelledStream : public BatchStream {
 public:
  LabelledStream(
      std::shared_ptr<const Dataset> dataset,
      const data::SampleOrder::Options& order,
      const data::BatchPlan& plan,
      const data::PrefetchOptions& prefetch)
      : loader_(std::move(dataset), order, plan, prefetch) {}

  std::optional<Batch> next() override {
    auto batch = loader_.next();
    return batch ? std::optional(batch_of(std::move(*batch))) : std::nullopt;
  }

 private:
  Loader loader_;
};

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

RunData serve(const data::LanguageData& opened, const data::PrefetchOptions& prefetch) {
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

template <class Loader, class Dataset>
RunData serve_labelled(
    const TrainConfig& config,
    std::shared_ptr<const Dataset> train,
    std::shared_ptr<const Dataset> validation,
    uint64_t seed,
    const data::PrefetchOptions& prefetch) {
  using Stream = LabelledStream<Loader, Dataset>;
  require(
      train->num_labels() <= config.training.num_labels,
      "training.num_labels: expected at least {}, the number of labels in the data, found {}",
      train->num_labels(),
      config.training.num_labels);
  require(
      !validation || validation->num_labels() <= config.training.num_labels,
      "training.num_labels: expected at least {}, the number of labels in data.validation_path, found {}",
      validation ? validation->num_labels() : 0,
      config.training.num_labels);
  const data::SampleOrder::Options order{.seed = seed, .shuffle = config.data.shuffle, .repeat = config.data.repeat};
  RunData run;
  run.fingerprint = train->fingerprint(order);
  run.num_train_rows = order.repeat ? std::nullopt : std::optional(train->size());
  run.train = [train, order, prefetch](const RowShare& rows, int64_t start) {
    return std::make_unique<Stream>(train, order, plan_of(rows, start, true), prefetch);
  };
  run.train_once = [train, order, prefetch](const RowShare& rows, std::optional<int64_t> max_rows) {
    return std::make_unique<Stream>(train, order, plan_of(rows, 0, false, max_rows), prefetch);
  };
  if (validation) {
    run.num_validation_rows = validation->size();
    run.validation = [validation, prefetch](const RowShare& rows, std::optional<int64_t> max_rows) {
      return std::make_unique<Stream>(
          validation,
          data::SampleOrder::Options{.shuffle = false, .repeat = false},
          plan_of(fitting(rows, validation->size()), 0, false, max_rows),
          prefetch);
    };
  }
  return run;
}

void check_kind_of_data(const TrainConfig& config) {
  struct Kind {
    TaskKind task;
    bool given;
    const char* name;
  };
  for (const Kind& kind :
       {Kind{TaskKind::classification, config.data.is_classification(), "classification"},
        Kind{TaskKind::token_classification, config.data.is_token_classification(), "token_classification"}}) {
    const bool wanted = config.training.task == kind.task;
    require(
        kind.given == wanted,
        "data.datasets: training.task is {}, so the data must {} of kind \"{}\"",
        name_of(config.training.task),
        wanted ? "be" : "not be",
        kind.name);
  }
}
}  // namespace

RunData open_run_data(
    const TrainConfig& config,
    const data::Tokenizer& tokenizer,
    int64_t vocab_size,
    const std::function<void(const std::string&)>& inform) {
  check_kind_of_data(config);
  const auto seed = static_cast<uint64_t>(config.data.seed.value_or(config.debug.seed));
  const data::OpenDataOptions options{
      .seq_len = config.training.seq_len,
      .vocab_size = vocab_size,
      .seed = seed,
      .cache_folder = std::filesystem::path(config.job.dump_folder) / "cache",
      .inform = inform,
      .chat_template = config.data.has_chat() ? chat_template_of(config) : nullptr};
  const data::PrefetchOptions prefetch{.num_workers = config.data.num_workers, .depth = config.data.prefetch};
  if (config.training.task == TaskKind::classification) {
    const auto opened = data::open_classification(config.data, tokenizer, options);
    return serve_labelled<data::ClassificationLoader>(config, opened.train, opened.validation, seed, prefetch);
  }
  if (config.training.task == TaskKind::token_classification) {
    const auto opened = data::open_token_classification(config.data, tokenizer, options);
    return serve_labelled<data::TokenClassificationLoader>(config, opened.train, opened.validation, seed, prefetch);
  }
  return serve(data::open_data(config.data, tokenizer, options), prefetch);
}

}  // namespace lehr::train
