#include "lehr/search/library.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/base/value_of.h"
#include "lehr/descriptor/model_descriptor.h"
#include "lehr/state/safetensors.h"
#include "lehr/state/safetensors_writer.h"

namespace lehr::search {

namespace {
using pretrained::Subblock;
}  // namespace

Library::Library(
    const std::filesystem::path& teacher,
    const descriptor::ModelFamilies& families,
    const DecoderPieces& pieces,
    const SearchSpace& space)
    : teacher_(teacher), families_(families), pieces_(pieces), space_(space) {}

const prune::PrunedModel& Library::cut(Subblock subblock, size_t variant) const {
  std::unique_ptr<prune::PrunedModel>& model = cuts_[{subblock, variant}];
  if (!model) {
    prune::Pruning pruning{.layers = std::vector<prune::LayerKeeps>(space_.size())};
    for (size_t layer = 0; layer < space_.size(); ++layer) {
      const auto& variants = space_[layer].of(subblock);
      // No-ops have no weights to read.
      if (variant < variants.size() && !variants[variant].is_no_op) {
        pruning.layers[layer] = variants[variant].keeps;
      }
    }
    model = std::make_unique<prune::PrunedModel>(teacher_, pruning, families_);
  }
  return *model;
}

bool Library::belongs(const std::string& name, int64_t layer, Subblock subblock) const {
  const descriptor::SubblockModules modules = pieces_.descriptor().subblock_modules();
  const auto& own = subblock == Subblock::attention ? modules.attention : modules.ffn;
  const std::string prefix = pieces_.descriptor().layer_block_name(layer) + ".";
  return std::any_of(
      own.begin(), own.end(), [&](const std::string& child) { return name.starts_with(prefix + child + "."); });
}

void Library::fill(const nn::Model& piece, int64_t layer, size_t attention, size_t ffn) const {
  const at::NoGradGuard no_grad;
  const std::string prefix = pieces_.descriptor().layer_block_name(layer) + ".";
  pieces_.each_parameter(piece, layer, [&](const std::string& name, nn::Parameter& parameter) {
    Place place{.layer = layer, .subblock = Subblock::attention, .variant = 0};
    if (belongs(name, layer, Subblock::attention)) {
      place.variant = attention;
    } else if (belongs(name, layer, Subblock::ffn)) {
      place = {.layer = layer, .subblock = Subblock::ffn, .variant = ffn};
    }
    const at::Tensor value = parameter.value();
    if (const SubblockTensors* own = trained(place); own != nullptr) {
      value.copy_(own->at(name.substr(prefix.size())));
    } else if (const prune::LayerKeeps& keeps = at(space_, place).keeps; keeps.linear_attention || keeps.linear_ffn) {
      at::Tensor& known = linear_[name];
      if (!known.defined()) {
        known = cut(place.subblock, place.variant).read(name, whole_box(parameter.shape()));
      }
      value.copy_(known);
    } else {
      cut(place.subblock, place.variant).copy(name, whole_box(parameter.shape()), value);
    }
  });
}

Piece Library::layer(int64_t layer, size_t attention, size_t ffn) const {
  const LayerSpace& variants = space_.at(static_cast<size_t>(layer));
  const Piece piece = pieces_.layer(
      layer, {.attention = variants.attention.at(attention).block.attention, .ffn = variants.ffn.at(ffn).block.ffn});
  if (piece) {
    fill(*piece, layer, attention, ffn);
  }
  return piece;
}

Piece Library::layer(const Place& place) const {
  return place.subblock == Subblock::attention ? layer(place.layer, place.variant, 0)
                                               : layer(place.layer, 0, place.variant);
}

Piece Library::embeddings() const {
  const Piece piece = pieces_.embeddings();
  fill(*piece, 0, 0, 0);
  return piece;
}

Piece Library::head() const {
  const Piece piece = pieces_.head();
  fill(*piece, 0, 0, 0);
  return piece;
}

void Library::set_trained(const Place& place, SubblockTensors tensors) {
  trained_[{place.layer, place.subblock}][place.variant] = std::move(tensors);
}

const SubblockTensors* Library::trained(const Place& place) const {
  const auto found = trained_.find({place.layer, place.subblock});
  if (found == trained_.end()) {
    return nullptr;
  }
  const auto variant = found->second.find(place.variant);
  return variant == found->second.end() ? nullptr : &variant->second;
}

SubblockTensors Library::tensors_of(const nn::Model& piece, int64_t layer, Subblock subblock) const {
  SubblockTensors tensors;
  const std::string prefix = pieces_.descriptor().layer_block_name(layer) + ".";
  pieces_.each_parameter(piece, layer, [&](const std::string& name, nn::Parameter& parameter) {
    if (belongs(name, layer, subblock)) {
      tensors[name.substr(prefix.size())] = parameter.value().detach().clone();
    }
  });
  return tensors;
}

SubblockTensors Library::as_stored(const Place& place, SubblockTensors tensors) const {
  const state::TensorSpecs& specs = cut(place.subblock, place.variant).specs();
  for (auto& [name, tensor] : tensors) {
    const auto dtype =
        state::scalar_type(specs.at(pieces_.descriptor().layer_block_name(place.layer) + "." + name).dtype);
    tensor = tensor.to(value_of(dtype, "dtype"));  // known: the tensor was read from that file
  }
  return tensors;
}

int64_t Library::bytes_as_stored(const Place& place) const {
  int64_t bytes = 0;
  for (const auto& [name, spec] : cut(place.subblock, place.variant).specs()) {
    if (belongs(name, place.layer, place.subblock)) {
      int64_t size = static_cast<int64_t>(c10::elementSize(value_of(state::scalar_type(spec.dtype), "dtype")));
      for (const int64_t dim : spec.shape) {
        size *= dim;
      }
      bytes += size;
    }
  }
  return bytes;
}

std::filesystem::path variant_file(const std::filesystem::path& folder, const SearchSpace& space, const Place& place) {
  std::string name = at(space, place).name;
  std::replace(name.begin(), name.end(), ' ', '_');
  return folder / fmt::format("layer_{}_{}_{}.safetensors", place.layer, pretrained::name_of(place.subblock), name);
}

void write_trained(const std::filesystem::path& folder, const Library& library, const std::vector<Place>& places) {
  std::filesystem::create_directories(folder);
  for (const Place& place : places) {
    if (const SubblockTensors* tensors = library.trained(place); tensors != nullptr) {
      state::save_safetensors(
          variant_file(folder, library.space(), place), state::NamedTensors(tensors->begin(), tensors->end()));
    }
  }
}

bool read_trained(const std::filesystem::path& folder, Library& library, const std::vector<Place>& places) {
  for (const Place& place : places) {
    if (!std::filesystem::exists(variant_file(folder, library.space(), place))) {
      return false;
    }
  }
  for (const Place& place : places) {
    const state::SafetensorsFile file(variant_file(folder, library.space(), place));
    SubblockTensors tensors;
    for (const auto& info : file.tensors()) {
      tensors[info.name] = file.tensor(info.name);
    }
    library.set_trained(place, std::move(tensors));
  }
  return true;
}

}  // namespace lehr::search
