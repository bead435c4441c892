// Datasets for language models: sequences by a global index that has the same meaning on every mesh.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lehr/data/packing.h"
#include "lehr/data/sample_order.h"

namespace lehr::data {

/// One training sequence; each vector has seq_len elements. See RowSpan.
struct Sample {
  std::vector<int64_t> input_ids;
  std::vector<int64_t> labels;
  std::vector<int64_t> position_ids;
  std::vector<int64_t> document_ids;
};

/// The source of a loader. `fill` must be a pure function of the index, and is called from several threads
/// concurrently.
class RowDataset {
 public:
  virtual ~RowDataset() = default;
  virtual int64_t seq_len() const = 0;
  /// Returns the number of sequences; nothing if the dataset repeats forever.
  virtual std::optional<int64_t> size() const = 0;
  virtual void fill(int64_t index, const RowSpan& out) const = 0;

  /// Like `fill`, but returns a value.
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

  /// Returns a hash of the sequences and their order. It depends on the data's size, some of its tokens, the packing,
  /// the weights and the seed. A run that resumes compares it, because a step number is meaningless for other data.
  uint64_t fingerprint() const { return fingerprint_; }

  const SampleOrder& order() const { return order_; }
  const std::vector<Part>& parts() const { return parts_; }

 private:
  std::vector<Part> parts_;
  SampleOrder order_;
  uint64_t fingerprint_;
};

}  // namespace lehr::data
