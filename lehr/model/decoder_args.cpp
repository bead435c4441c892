#include "lehr/model/decoder_args.h"

#include "lehr/base/error.h"
#include "lehr/nn/moe.h"

namespace lehr::model {

descriptor::ModelCounts count_decoder(const DecoderConfig& config, nn::Module& model, int64_t seq_len) {
  descriptor::ModelCounts counts;
  counts.num_parameters = nn::count_parameters(model);
  // Looking embeddings up multiplies nothing; as a tied head they do.
  const bool embeddings_multiply = config.head == descriptor::Head::causal_lm && config.tie_word_embeddings;
  const int64_t embeddings = config.vocab_size * config.hidden_size;
  int64_t multiplied = counts.num_parameters - (embeddings_multiply ? 0 : embeddings);
  for (const nn::MoELayerImpl* mixture : nn::moe_layers(model)) {
    multiplied -= mixture->num_idle_parameters();
  }
  const int64_t attention = 12 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * seq_len;
  counts.flops_per_token = 6 * multiplied + attention;
  counts.causal_flops_per_token = 6 * multiplied + attention / 2;
  return counts;
}

namespace {
// "embed_tokens.token_embedding.default" -> the segment's name, if `name` is a segment below `prefix`.
std::optional<std::string> segment_of(const std::string& name, const std::string& prefix) {
  const std::string suffix = ".weight";
  if (name.starts_with(prefix) && name.ends_with(suffix)) {
    return name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  }
  return std::nullopt;
}
}  // namespace

std::vector<descriptor::StoredName> decoder_stored_names(
    const nn::Module& model, const nn::SplitVocabulary& vocabulary) {
  std::map<std::string, int64_t> first_row;
  int64_t rows = 0;
  for (const auto& segment : vocabulary.order) {
    first_row[segment] = rows;
    rows += vocabulary.sizes.at(segment);
  }
  std::vector<descriptor::StoredName> names;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    descriptor::StoredName stored{.stored = name, .shape = parameter->shape(), .parameter = name};
    for (const auto& [prefix, whole] :
         {std::pair{"model.embed_tokens.token_embedding.", "model.embed_tokens.weight"},
          std::pair{"lm_head.lm_head.", "lm_head.weight"}}) {
      if (const auto segment = segment_of(name, prefix)) {
        stored.stored = whole;
        stored.shape[0] = rows;
        stored.first_row = first_row.at(*segment);
      }
    }
    if (name == "cls_head.score.weight") {
      stored.stored = "score.weight";
    }
    const std::string experts = ".mlp.grouped_experts.";
    if (const size_t at = name.find(experts); at != std::string::npos) {
      // Hugging Face keeps a tensor an expert: ...mlp.experts.3.gate_proj.weight.
      const std::string layer = name.substr(0, at);
      const std::string projection = name.substr(at + experts.size());
      for (int64_t expert = 0; expert < parameter->shape()[0]; ++expert) {
        names.push_back(
            {.stored = fmt::format("{}.mlp.experts.{}.{}", layer, expert, projection),
             .shape = {parameter->shape()[1], parameter->shape()[2]},
             .parameter = name,
             .expert = expert});
      }
      continue;
    }
    if (const size_t at = name.find(".mlp.router.gate."); at != std::string::npos) {
      stored.stored = name.substr(0, at) + ".mlp.gate.weight";
    }
    names.push_back(std::move(stored));
  }
  return names;
}

}  // namespace lehr::model
