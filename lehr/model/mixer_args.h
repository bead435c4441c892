// ModelArgs and descriptor of families whose layers have one mixer each, with the names of mixer_names.h.
#pragma once

#include <map>

#include "lehr/base/value_of.h"
#include "lehr/model/decoder_args.h"
#include "lehr/model/mixer_names.h"

namespace lehr::model {

/// The sizes of Mamba-2, and the mixers.
inline const Mamba2Config& mamba_of(const DecoderConfig& config) {
  return value_of(config.mamba2, "Mamba-2");
}

/// The members of a layer of `Family` are those that mixer_names.h names.
template <class Family>
class MixerArgs : public DecoderArgs<Family> {
 public:
  using DecoderArgs<Family>::DecoderArgs;

  std::string backbone_prefix() const override { return kBackbonePrefix; }

  state::StateMap state_map(descriptor::ExpertLayout layout) const override {
    return with_mixer_names(DecoderArgs<Family>::state_map(layout), mamba_of(this->config()));
  }
};

/// Weights are grouped by the names of modules: stored ones do not say which sub-block a norm belongs to.
template <class Args>
class MixerDescriptor : public DecoderDescriptor<Args> {
 public:
  using DecoderDescriptor<Args>::DecoderDescriptor;

  descriptor::WeightGroups get_weight_groups(
      const std::vector<std::string>& layer_names, int64_t num_hidden_layers) const override {
    const auto stored = mixer_module_names(layer_names);
    std::vector<std::string> names;
    for (const auto& [name, tensor] : stored) {
      names.push_back(name);
    }
    auto groups = DecoderDescriptor<Args>::get_weight_groups(names, num_hidden_layers);
    const std::map<std::string, std::string> in_checkpoint(stored.begin(), stored.end());
    for (auto& [group, members] : groups) {
      for (std::string& name : members) {
        name = in_checkpoint.at(name);
      }
    }
    return groups;
  }

 protected:
  std::vector<std::string> stored_names(const DecoderConfig& shape, descriptor::ExpertLayout layout) const override {
    return DecoderArgs<typename Args::Family>(shape).state_map(layout).input_names();
  }
};

}  // namespace lehr::model
