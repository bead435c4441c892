#include "lehr/verify/outputs.h"

#include "lehr/mesh/collectives.h"
#include "lehr/mesh/distributed_context.h"
#include "lehr/nn/moe.h"
#include "lehr/train/generate.h"

namespace lehr::verify {

namespace {
/// labels[t] is the target of position t.
at::Tensor shifted(const at::Tensor& labels) {
  at::Tensor next = at::full_like(labels, -100);
  next.narrow(1, 0, labels.size(1) - 1).copy_(labels.narrow(1, 1, labels.size(1) - 1));
  return next;
}

bool is_classifier(const descriptor::ModelArgs& args) {
  return descriptor::is_classifier(args.head());
}

bool classifies_tokens(const descriptor::ModelArgs& args) {
  return args.head() == descriptor::Head::token_classification;
}

/// The inputs of this rank for whole sequences on the host, by the names that a batch has.
nn::ModelInputs inputs_of(train::Batch whole, const train::Ranks& ranks, at::Device device) {
  const at::Tensor ids = whole.at("input_ids");
  if (ranks.sequence_parts() > 1 && !whole.contains("position_ids")) {  // the tokens of padding have position 0
    whole["position_ids"] = at::arange(ids.size(1), ids.options()).expand_as(ids);
  }
  train::Batch mine = train::to_device(ranks.positions_of(whole), device);
  nn::ModelInputs inputs;
  inputs.input_ids = mine["input_ids"];
  inputs.position_ids = mine["position_ids"];
  inputs.labels = mine["labels"];
  inputs.pooling_mask = mine["pooling_mask"];
  inputs.attention_mask.document_ids = mine["document_ids"];
  inputs.attention_mask.key_padding = mine["attention_mask"];
  inputs.attention_mask.sequence_ends = mine["sequence_ends"];
  return inputs;
}

train::Batch classifier_batch(const descriptor::ModelArgs& args, const at::Tensor& input_ids, const at::Tensor& mask) {
  if (classifies_tokens(args)) {
    return {{"input_ids", input_ids}, {"attention_mask", mask.to(at::kBool)}};
  }
  // The rightmost token that is not padding.
  const int64_t pad = args.pad_token_id().value_or(-1);
  const at::Tensor positions = at::arange(input_ids.size(1), input_ids.options());
  const at::Tensor last = (positions * input_ids.ne(pad)).argmax(1, /*keepdim=*/true);
  return {
      {"input_ids", input_ids},
      {"attention_mask", mask.to(at::kBool)},
      {"pooling_mask", at::zeros_like(input_ids).scatter_(1, last, 1)}};
}

class Outputs {
 public:
  Outputs(Comparison& comparison, nn::Model& model, const descriptor::ModelArgs& args, const train::Ranks& ranks)
      : comparison_(comparison), model_(model), args_(args), ranks_(ranks) {}

  void compare() {
    const at::NoGradGuard no_grad;
    forward_rows();
    label_rows();
    padding_rows();
    packing_rows();
    generation_rows();
  }

 private:
  at::Tensor host(const std::string& name) { return comparison_.reference().tensor(name); }
  nn::ModelInputs inputs(const train::Batch& whole) const {
    return inputs_of(whole, ranks_, comparison_.options().device);
  }
  bool staged() const { return ranks_.context() != nullptr && ranks_.context()->size(mesh::axis::pp) > 1; }

  /// Returns the states (B, T, ...) of all positions from those of this rank's part.
  at::Tensor whole(const at::Tensor& part, int64_t tokens) const {
    const at::Tensor padded =
        ranks_.sequence_parts() == 1 ? part : mesh::all_gather(part, ranks_.context()->group(mesh::axis::tp), 1);
    return padded.narrow(1, 0, tokens);
  }

  at::Tensor logits_of(const nn::ModelInputs& inputs, int64_t tokens) {
    return model_.logits(model_.forward(inputs).hidden_states).narrow(1, 0, tokens);
  }

  /// The negative log-likelihoods (B, T) of labels that are shifted.
  at::Tensor nll_of(train::Batch batch, const at::Tensor& labels) {
    batch["labels"] = labels;
    return model_.forward(inputs(batch)).nll().narrow(1, 0, labels.size(1));
  }

  void forward_rows() {
    const at::Tensor ids = host("input_ids");
    const int64_t tokens = ids.size(1);
    const bool masked = is_classifier(args_);
    const at::Tensor visible = masked ? host("attention_mask").to(at::kBool).unsqueeze(-1) : at::Tensor();
    const train::Batch batch =
        masked ? classifier_batch(args_, ids, host("attention_mask")) : train::Batch{{"input_ids", ids}};
    std::vector<at::Tensor> layer_inputs;
    nn::ModelInputs given = inputs(batch);
    given.layer_inputs = staged() ? nullptr : &layer_inputs;
    const nn::ModelOutputs outputs = model_.forward(given);
    if (!staged()) {
      routing_rows(ids.size(0), tokens);
      for (size_t i = 0; i < layer_inputs.size(); ++i) {
        comparison_.compare_in(
            comparison_.reference(), "hidden." + std::to_string(i), whole(layer_inputs[i], tokens), visible);
      }
      comparison_.compare_in(
          comparison_.reference(), "hidden.final_norm", whole(outputs.hidden_states, tokens), visible);
    }
    if (classifies_tokens(args_)) {
      comparison_.compare_in(comparison_.reference(), "logits", outputs.scores.narrow(1, 0, tokens), visible);
      return;
    }
    if (masked) {
      comparison_.compare("logits", outputs.scores);
      return;
    }
    comparison_.compare("logits", model_.logits(outputs.hidden_states).narrow(1, 0, tokens));
    if (comparison_.has("logps")) {
      comparison_.compare("logps", -nll_of(batch, shifted(ids)).narrow(1, 0, tokens - 1));
    }
    if (comparison_.has("loss_sum") && comparison_.has("labels")) {
      comparison_.compare("loss_sum", nll_of(batch, shifted(host("labels"))).sum());
    }
  }

  void label_rows() {
    if (comparison_.has("labels")) {
      const at::Tensor mask = is_classifier(args_) ? host("attention_mask") : at::Tensor();
      comparison_.compare(
          "loss",
          reference_loss(model_, args_, ranks_, comparison_.options().device, host("input_ids"), host("labels"), mask));
    }
  }

  /// Compares the decisions of the last forward's routers, (B * T, ...) each.
  void routing_rows(int64_t rows, int64_t tokens) {
    for (const auto& module : model_.named_modules("", /*include_self=*/false)) {
      const auto* experts = dynamic_cast<const nn::MoELayerImpl*>(module.value().get());
      const std::string& path = module.key();  // ...layers.3.mlp
      const size_t at = path.rfind("layers.");
      if (experts == nullptr || at == std::string::npos) {
        continue;
      }
      const std::string layer = std::to_string(std::stoll(path.substr(at + std::string("layers.").size())));
      const auto compare = [&](const std::string& name, const at::Tensor& part) {
        comparison_.compare(name + layer, whole(part.unflatten(0, {rows, -1}), tokens).flatten(0, 1));
      };
      compare("router_logits.", experts->last_routing().logits);
      compare("topk_index.", experts->last_routing().selected_expert_indices);
    }
  }

  void padding_rows() {
    if (!comparison_.has("padded_input_ids")) {
      return;
    }
    const at::Tensor ids = host("padded_input_ids");
    for (const std::string side : {"padded_right", "padded_left"}) {
      if (!comparison_.has(side + "_mask")) {
        continue;
      }
      const at::Tensor mask = host(side + "_mask").to(at::kBool);
      train::Batch batch{{"input_ids", ids}, {"attention_mask", mask}};
      if (comparison_.has(side + "_position_ids")) {
        batch["position_ids"] = host(side + "_position_ids");
      }
      const at::Tensor logits = logits_of(inputs(batch), ids.size(1));
      comparison_.compare_in(comparison_.reference(), side + "_logits", logits, mask.unsqueeze(-1));
    }
  }

  void packing_rows() {
    if (!comparison_.has("packed_input_ids") || !comparison_.has("packed_doc_ids") ||
        !comparison_.has("packed_position_ids")) {
      return;
    }
    const at::Tensor ids = host("packed_input_ids"), documents = host("packed_doc_ids");
    const int64_t tokens = ids.size(1);
    const train::Batch batch{
        {"input_ids", ids}, {"position_ids", host("packed_position_ids")}, {"document_ids", documents}};
    comparison_.compare("packed_logits", logits_of(inputs(batch), tokens));
    at::Tensor labels = shifted(ids);
    const at::Tensor crosses = documents.narrow(1, 1, tokens - 1).ne(documents.narrow(1, 0, tokens - 1));
    labels.narrow(1, 0, tokens - 1).masked_fill_(crosses, -100);
    comparison_.compare("packed_loss", nll_of(batch, labels).sum() / labels.ne(-100).sum().item<int64_t>());
  }

  void generation_rows() {
    for (int i = 0; comparison_.has("gen_prompt." + std::to_string(i)); ++i) {
      if (!comparison_.has("gen_tokens." + std::to_string(i))) {
        continue;
      }
      const at::Tensor prompt = host("gen_prompt." + std::to_string(i)).contiguous();
      const at::Tensor expected = host("gen_tokens." + std::to_string(i));
      const train::SamplingOptions greedy{
          .max_new_tokens = expected.size(0),
          .temperature = 0,
          .device = comparison_.options().device,
          .ranks = &ranks_};
      const int64_t* ids = prompt.data_ptr<int64_t>();
      const auto tokens = train::generate(model_, {ids, ids + prompt.numel()}, greedy);
      comparison_.compare("gen_tokens." + std::to_string(i), at::tensor(tokens, at::kLong), expected);
    }
  }

  Comparison& comparison_;
  nn::Model& model_;
  const descriptor::ModelArgs& args_;
  const train::Ranks& ranks_;
};
}  // namespace

at::Tensor reference_loss(
    nn::Model& model,
    const descriptor::ModelArgs& args,
    const train::Ranks& ranks,
    at::Device device,
    const at::Tensor& input_ids,
    const at::Tensor& labels,
    const at::Tensor& mask) {
  if (is_classifier(args)) {
    const at::Tensor scores = model.forward(inputs_of(classifier_batch(args, input_ids, mask), ranks, device)).scores;
    return classifies_tokens(args)
               ? at::cross_entropy_loss(scores.narrow(1, 0, labels.size(1)).flatten(0, 1), labels.to(device).flatten())
               : at::cross_entropy_loss(scores, labels.to(device));
  }
  const at::Tensor targets = shifted(labels);
  const nn::ModelInputs inputs = inputs_of({{"input_ids", input_ids}, {"labels", targets}}, ranks, device);
  return model.forward(inputs).nll().sum() / targets.ne(-100).sum().item<int64_t>();
}

void compare_outputs(
    Comparison& comparison, nn::Model& model, const descriptor::ModelArgs& args, const train::Ranks& ranks) {
  Outputs(comparison, model, args, ranks).compare();
}

}  // namespace lehr::verify
