// The common part of datasets of labelled texts and of pairs, and of their loaders.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "lehr/data/loader.h"
#include "lehr/data/lone_surrogates.h"
#include "lehr/data/ordered_pipeline.h"
#include "lehr/data/sample_order.h"

namespace lehr::data {

/// Examples, held in memory as ids.
template <class Example, class Options>
class ExampleDataset {
 public:
  /// Returns the number of examples.
  int64_t size() const { return static_cast<int64_t>(examples_.size()); }
  const Example& example(int64_t index) const { return examples_[static_cast<size_t>(index)]; }
  const Options& options() const { return options_; }
  int64_t pad_id() const { return pad_id_; }
  /// Returns the lone surrogates that were replaced in the texts.
  const LoneSurrogates& lone_surrogates() const { return lone_surrogates_; }

 protected:
  ExampleDataset(Options options, int64_t pad_id) : options_(std::move(options)), pad_id_(pad_id) {}

  std::vector<Example> examples_;
  LoneSurrogates lone_surrogates_;
  Options options_;
  int64_t pad_id_;
};

/// Returns the pipeline of the batches make(samples, step) of a dataset of `size` examples, step by step.
template <class Make>
auto example_batches(
    int64_t size,
    const SampleOrder::Options& order,
    const BatchPlan& plan,
    const PrefetchOptions& options,
    const Make& make) {
  using Made = std::invoke_result_t<Make, const SampleOrder&, int64_t>;
  return OrderedPipeline<int64_t, Made>(
      options.num_workers,
      options.depth,
      steps_of(order.repeat ? std::nullopt : std::optional(size), plan),
      [make, samples = SampleOrder({{.size = size}}, order)](int64_t&& step) { return make(samples, step); });
}

/// Loads the batches make_batch(dataset, samples, plan, step), step by step, in the order of a SampleOrder. Their width
/// is that of the global batch, so it is the same on every rank. May be destroyed at any time.
template <class Dataset, class Batch>
class ExampleLoader {
 public:
  ExampleLoader(
      std::shared_ptr<const Dataset> dataset, SampleOrder::Options order, BatchPlan plan, PrefetchOptions options = {})
      : pipeline_(example_batches(
            dataset->size(), order, plan, options, [dataset, plan](const SampleOrder& samples, int64_t step) {
              return make_batch(*dataset, samples, plan, step);
            })) {}

  /// Returns the next step's batch; nothing at the end of finite data.
  std::optional<Batch> next() { return pipeline_.next(); }

 private:
  OrderedPipeline<int64_t, Batch> pipeline_;
};

}  // namespace lehr::data
