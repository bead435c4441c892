#include "lehr/search/child.h"

#include "lehr/config/json.h"
#include "lehr/descriptor/model_descriptor.h"
#include "lehr/prune/pruned_model.h"

namespace lehr::search {

namespace {
at::Tensor region(at::Tensor tensor, const Box& box) {
  for (size_t dim = 0; dim < box.size(); ++dim) {
    tensor = tensor.slice(static_cast<int64_t>(dim), box[dim].begin, box[dim].end);
  }
  return tensor;
}

// The child's parameters: trained ones from the library, the others cut from the teacher's files.
class ChildWeights : public state::TensorSource {
 public:
  ChildWeights(const prune::PrunedModel& cut, const Library& library, const Choice& choice) : cut_(cut) {
    for (int64_t layer = 0; layer < library.pieces().num_layers(); ++layer) {
      for (const auto subblock : pretrained::kSubblocks) {
        const SubblockTensors* own =
            library.trained({.layer = layer, .subblock = subblock, .variant = choice.of(layer, subblock)});
        if (own != nullptr) {
          for (const auto& [name, tensor] : *own) {
            trained_[library.pieces().descriptor().layer_block_name(layer) + "." + name] = tensor;
          }
        }
      }
    }
  }

  at::Tensor read(const std::string& name, const Box& box) const override {
    const auto own = trained_.find(name);
    if (own == trained_.end()) {
      return cut_.read(name, box);
    }
    return region(own->second, box);  // as_stored
  }

 private:
  const prune::PrunedModel& cut_;
  std::map<std::string, at::Tensor> trained_;
};
}  // namespace

pretrained::WrittenModel write_child(
    const Library& library,
    const Choice& choice,
    const std::filesystem::path& teacher,
    const std::filesystem::path& output,
    const descriptor::ModelFamilies& families,
    ChildLayout layout) {
  pretrained::require_new_folder(output);
  const prune::PrunedModel cut(teacher, pruning_of(library.space(), choice), families);
  const ChildWeights weights(cut, library, choice);
  Node config = pretrained::plain_text_config(teacher);
  pretrained::set_blocks(config, cut.args());
  return pretrained::write_model_folder(
      {.model = teacher,
       .output = output,
       .subblocks = layout == ChildLayout::subblocks,
       .texts = {{"config.json", to_json(config, true) + "\n"}}},
      cut.args(),
      state::BoundMap(cut.args().state_map(cut.parent().layout()).inverse(), cut.specs()),
      weights,
      families);
}

}  // namespace lehr::search
