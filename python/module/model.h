// A model as a class of torch.classes: forward, generation, parameters, saving.
#pragma once

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/data/tokenizer.h"
#include "lehr/descriptor/model_args.h"
#include "lehr/nn/model.h"
#include "lehr/pretrained/save_model.h"
#include "python/module/callback.h"

namespace lehr::python {

/// A tokenizer; see lehr/data/tokenizer.h.
class Tokenizer : public torch::CustomClassHolder {
 public:
  /// Opens "byte", a folder or a file.
  explicit Tokenizer(const std::string& what) : tokenizer_(data::load_tokenizer(what)) {}
  explicit Tokenizer(std::shared_ptr<const data::Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {}
  std::vector<int64_t> encode(const std::string& text) const;
  /// Returns the ids before and after a text (data::SpecialTokens).
  std::tuple<std::vector<int64_t>, std::vector<int64_t>> special_tokens() const;
  std::string decode(const std::vector<int64_t>& ids, bool skip_special) const;
  /// Returns what `ids` add to the text of the ids `before` them (data::decode_after).
  std::string decode_after(
      const std::vector<int64_t>& before, const std::vector<int64_t>& ids, bool skip_special) const;
  int64_t vocab_size() const { return tokenizer_->vocab_size(); }

 private:
  std::shared_ptr<const data::Tokenizer> tokenizer_;
};

/// A whole model on one device. Parameters are the tensors that C++ computes with, not copies.
class Model : public torch::CustomClassHolder {
 public:
  struct Parts {
    std::shared_ptr<nn::Model> model;
    std::shared_ptr<const descriptor::ModelArgs> args;
    bool has_adapters = false;
    std::vector<int64_t> stop_ids = {};  ///< Tokens that end a generated text.
    pretrained::SaveOptions files = {};  ///< The files to write beside the weights; the rest is set by save().
  };
  explicit Model(Parts parts) : parts_(std::move(parts)) {}
  /// Loads a model folder or a folder of adapters; sets eval mode.
  static c10::intrusive_ptr<Model> load(const std::string& folder, const std::string& device, at::ScalarType dtype);

  /// The results of nn::Model::forward by name, with "nll" for "logps". `input_ids` is (B, T) int64; the other tensors
  /// are those of nn::ModelInputs, and `attention_mask` (B, T) is 0 for padding.
  NamedTensors forward(
      const at::Tensor& input_ids,
      const std::optional<at::Tensor>& targets,
      const std::optional<at::Tensor>& position_ids,
      const std::optional<at::Tensor>& attention_mask,
      const std::optional<at::Tensor>& document_ids,
      const std::optional<at::Tensor>& pooling_mask) const;
  /// (B, T, V) from the final hidden states (B, T, H).
  at::Tensor logits(const at::Tensor& hidden_states) const { return parts_.model->logits(hidden_states); }
  /// New ids after `prompt`; `on_token` gets each.
  std::vector<int64_t> generate(
      const std::vector<int64_t>& prompt,
      int64_t max_new_tokens,
      double temperature,
      int64_t top_k,
      double top_p,
      int64_t seed,
      const std::optional<std::vector<int64_t>>& stop_ids,
      int64_t on_token) const;
  /// All parameters and state, in the order of the model.
  std::vector<std::tuple<std::string, at::Tensor>> named_parameters() const;
  /// Writes a new Hugging Face folder, with weights in `dtype`.
  void save(const std::string& folder, at::ScalarType dtype) const;
  void train(bool on) const { parts_.model->train(on); }
  bool is_training() const { return parts_.model->is_training(); }
  /// config.json as text.
  std::string config() const;

 private:
  Parts parts_;
};

/// Config, sizes and tensors of the model in `folder`, as JSON; needs no memory for the model.
std::string inspect(const std::string& folder);
/// The result of `lehr verify`, as JSON: ok, rows, left_out.
std::string verify(
    const std::string& folder, const std::string& reference, const std::string& device, at::ScalarType dtype);

}  // namespace lehr::python
