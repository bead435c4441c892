#include "lehr/prune/score_model.h"

#include <unistd.h>

#include "lehr/base/error.h"
#include "lehr/base/log.h"
#include "lehr/nn/head.h"
#include "lehr/train/ranks.h"
#include "lehr/train/task.h"

namespace lehr::prune {

const char* formula_of(Kind kind, const ScoreOptions& options) {
  switch (kind) {
    case Kind::ffn_channels:
    case Kind::shared_channels:
      return options.ffn == FfnMethod::iterative ? "rank in greedy removal, smallest first: mean over tokens of |sum "
                                                   "over removed j of W_j a_j + W_i a_i|"
             : options.ffn == FfnMethod::independent
                 ? "|W_i| times the mean over tokens of |a_i|"
                 : "sqrt of the sum over sequences of (mean over tokens of |a_i|)^2";
    case Kind::kv_heads:
      return "mean over tokens of |W_g a_g|";
    case Kind::experts:
      return options.experts == ExpertMethod::mse
                 ? "mean over tokens of mean (y - y')^2, where y' is the output without the expert"
             : options.experts == ExpertMethod::cosine
                 ? "mean over tokens of 1 - cos(y, y'), where y' is the output without the expert"
                 : "rank of removal in ranked-choice voting, 0 for the first";
    case Kind::expert_channels:
      return "|W_ei| times the mean over the expert's tokens of |a_ei|";
    case Kind::attention:
    case Kind::ffn:
      return "mean over tokens of 1 - cos(x, x + f(x))";
  }
  return "";
}

namespace {
void require_memory(const ModelScorer& scorer, int64_t tokens, int64_t memory) {
  if (memory == 0) {
    memory = sysconf(_SC_PHYS_PAGES) * (sysconf(_SC_PAGE_SIZE) / 2);
  }
  const auto text = [](int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  require(
      scorer.bytes_per_token() == 0 || tokens <= memory / scorer.bytes_per_token(),
      "scores of experts by voting: the votes of {} tokens take {} bytes each, {} together; expected at most {}; use "
      "fewer sequences (--max-rows), or --expert-method mse, which keeps nothing per token",
      tokens,
      scorer.bytes_per_token(),
      text(tokens * scorer.bytes_per_token()),
      text(memory));
}
}  // namespace

at::Tensor counted_tokens(const train::Batch& batch) {
  const auto padding = batch.find("attention_mask");
  return padding != batch.end() ? padding->second.to(at::kBool) : batch.at("labels").ne(nn::kIgnoreIndex);
}

Scores score_model(
    nn::Model& model,
    const descriptor::ModelDescriptor& descriptor,
    const ScoreData& data,
    const ScoreOptions& options) {
  int64_t batches = 0;
  int64_t tokens = 0;
  const auto each = [&](const std::function<void(const train::Batch&)>& body) {
    const auto stream = data.open();
    while (const auto batch = stream->next()) {
      if (counted_tokens(*batch).any().item<bool>()) {
        body(*batch);
      }
    }
  };
  each([&](const train::Batch& batch) {
    ++batches;
    tokens += counted_tokens(batch).sum().item<int64_t>();
  });
  require(batches > 0, "scores: the data has no token that counts; more data is needed");

  const at::Device device = nn::named_parameters(model).front().parameter->value().device();
  ModelScorer scorer(model, descriptor, batches, options);
  require_memory(scorer, tokens, data.memory);
  int64_t done = 0;
  each([&](const train::Batch& batch) {
    const train::Batch local = train::to_device(train::Ranks().positions_of(batch), device);
    nn::ModelInputs inputs = data.task.build_forward_inputs(local);
    inputs.labels = at::Tensor();  // no loss is needed
    scorer.forward(inputs, counted_tokens(local));
    if (data.progress) {
      data.progress(++done, batches);
    }
  });
  Scores scores{.facts = Node::make_table(), .values = scorer.scores(), .folder = {}};
  scores.facts.set("num_tokens", Node(tokens));
  scores.facts.set("num_batches", Node(batches));
  Node formulas = Node::make_table();
  for (const Kind kind : kKinds) {
    if (scores.has(kind)) {
      formulas.set(name_of(kind), Node(formula_of(kind, options)));
    }
  }
  scores.facts.set("formulas", std::move(formulas));
  return scores;
}

}  // namespace lehr::prune
