// Datasets for language models: rows by a global index that has the same meaning on every mesh.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lehr/data/packing.h"
#include "lehr/data/sample_order.h"

namespace lehr::data {

/// One row of training data; each vector has seq_len elements. See RowSpan.
struct Sample {
  std::vector<int64_t> input_ids;
  std::vector<int64_t> labels;
  std::vector<int64_t> position_ids;
  std::vector<int64_t> document_ids;
};

/// What a loader reads from. `fill` must be a pure function of the index, and is called from many threads at once.
class RowDataset {
 public:
  virtual ~RowDataset() = default;
  virtual int64_t seq_len() const = 0;
  /// The number of rows; nothing when the dataset starts over for ever.
  virtual std::optional<int64_t> size() const = 0;
  virtual void fill(int64_t index, const RowSpan& out) const = 0;

  /// The same as `fill`, as a value.
  Sample sample_at(int64_t index) const;
};

/// Packed corpora, mixed and shuffled by one SampleOrder.
class MixedDataset : public RowDataset {
 public:
  struct Part {
    PackedRows rows;
    double weight = 1.0;
  };
  /// All parts must have the same sequence length.
  MixedDataset(std::vector<Part> parts, SampleOrder::Options options);

  int64_t seq_len() const override { return parts_.front().rows.seq_len(); }
  std::optional<int64_t> size() const override { return order_.size(); }
  void fill(int64_t index, const RowSpan& out) const override;

  /// A number for "the same rows in the same order": changes with the data's extent, a sample of its tokens, the
  /// packing, the weights and the seed. A run that resumes compares it, because a step number means nothing in other
  /// data.
  uint64_t fingerprint() const { return fingerprint_; }

  const SampleOrder& order() const { return order_; }
  const std::vector<Part>& parts() const { return parts_; }

 private:
  std::vector<Part> parts_;
  SampleOrder order_;
  uint64_t fingerprint_;
};

}  // namespace lehr::data
