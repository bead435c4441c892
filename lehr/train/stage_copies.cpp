#include "lehr/train/stage_copies.h"

#include "lehr/base/error.h"

namespace lehr::train {

namespace {
// Finds a parameter of one stage, including copies.
nn::ParameterPtr find(const nn::Model& model, const std::string& name) {
  for (const auto& list : {nn::named_parameters(model), nn::named_copies(model)}) {
    for (const auto& [full_name, parameter] : list) {
      if (full_name == name) {
        return parameter;
      }
    }
  }
  fail("pipeline: the stage has no parameter {}", name);
}
}  // namespace

StageCopies::StageCopies(
    const StageLayout& layout, const std::vector<std::pair<int64_t, nn::Model*>>& models, const mesh::Group& pp)
    : pp_(pp) {
  for (int64_t stage = 0; stage < layout.num_stages(); ++stage) {
    for (const std::string& name : layout.names[static_cast<size_t>(stage)]) {
      const int64_t first = layout.stage_of(name);
      if (first == stage) {
        continue;
      }
      Pair pair{
          .rank = layout.rank_of_stage[static_cast<size_t>(first)],
          .copy_rank = layout.rank_of_stage[static_cast<size_t>(stage)]};
      for (const auto& [here, model] : models) {
        if (here == first) {
          pair.parameter = find(*model, name);
        }
        if (here == stage) {
          pair.copy = find(*model, name);
          pair.copy->make_copy();
        }
      }
      pairs_.push_back(std::move(pair));
    }
  }
}

std::set<std::pair<int64_t, int64_t>> StageCopies::routes() const {
  std::set<std::pair<int64_t, int64_t>> routes;
  for (const Pair& pair : pairs_) {
    routes.insert({pair.rank, pair.copy_rank});
    routes.insert({pair.copy_rank, pair.rank});
  }
  return routes;
}

void StageCopies::collect_gradients() const {
  for (const auto& [rank, copy_rank, parameter, copy] : pairs_) {
    const nn::ParameterPtr& any = parameter ? parameter : copy;
    if (!any || !any->trainable() || any->value().numel() == 0) {
      continue;
    }
    at::Tensor there;
    if (copy) {
      const at::Tensor& gradient = copy->value().grad();
      there = gradient.defined() ? gradient.contiguous() : at::zeros_like(copy->value().detach());
      if (!parameter) {
        pp_.start_send(there, rank).wait();
        continue;
      }
    } else {
      there = at::empty_like(parameter->value().detach());
      pp_.start_receive(there, copy_rank).wait();
    }
    at::Tensor& gradient = parameter->value().mutable_grad();
    gradient = gradient.defined() ? gradient + there : there.clone();
  }
}

void StageCopies::clear_gradients() const {
  for (const auto& pair : pairs_) {
    if (pair.copy) {
      pair.copy->value().mutable_grad().reset();
    }
  }
}

void StageCopies::refresh(bool only_trained) const {
  const at::NoGradGuard no_grad;
  for (const auto& [rank, copy_rank, parameter, copy] : pairs_) {
    const nn::ParameterPtr& any = parameter ? parameter : copy;
    if (!any || any->value().numel() == 0 || (only_trained && !any->trainable())) {
      continue;
    }
    if (parameter && copy) {
      copy->value().copy_(parameter->value());
    } else if (parameter) {
      pp_.start_send(parameter->value().detach(), copy_rank).wait();
    } else {
      pp_.start_receive(copy->value().detach(), rank).wait();
    }
  }
}

}  // namespace lehr::train
