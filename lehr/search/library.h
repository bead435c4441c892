// The weights of a search's variants: cut from the teacher, or trained by local distillation.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lehr/prune/pruned_model.h"
#include "lehr/search/decoder_pieces.h"
#include "lehr/search/space.h"

namespace lehr::search {

/// Tensors of one sub-block, by their names within the layer ("mlp.up_proj.weight").
using SubblockTensors = std::map<std::string, at::Tensor>;

/// The weights of all variants. A variant that was not trained is cut from the teacher's files when it is loaded, so
/// the library takes no memory of its own, except for linear layers: the products that they are made of are kept.
class Library {
 public:
  /// `pieces` and `space` belong to the model in `teacher`, and must outlive the library.
  Library(
      const std::filesystem::path& teacher,
      const descriptor::ModelFamilies& families,
      const DecoderPieces& pieces,
      const SearchSpace& space);

  /// Returns a layer with these variants (indices into its LayerSpace), with weights.
  Piece layer(int64_t layer, size_t attention, size_t ffn) const;
  /// Returns the layer of the teacher in which one sub-block is a variant.
  Piece layer(const Place& place) const;
  Piece embeddings() const;
  Piece head() const;

  /// Replaces the weights of a variant by trained ones.
  void set_trained(const Place& place, SubblockTensors tensors);
  /// Returns the trained weights of a variant; null if it was not trained.
  const SubblockTensors* trained(const Place& place) const;

  /// Returns copies of the parameters of one sub-block of a layer.
  SubblockTensors tensors_of(const nn::Model& piece, int64_t layer, pretrained::Subblock subblock) const;
  /// Returns the tensors of a variant in the dtypes of the teacher's files, as its folder will have them.
  SubblockTensors as_stored(const Place& place, SubblockTensors tensors) const;
  /// Returns the bytes of a variant's tensors as_stored: those that the library holds if it is trained, or is a linear
  /// layer.
  int64_t bytes_as_stored(const Place& place) const;
  /// Returns whether a parameter of that layer, by its name in the whole model, belongs to the sub-block.
  bool belongs(const std::string& name, int64_t layer, pretrained::Subblock subblock) const;

  const DecoderPieces& pieces() const { return pieces_; }
  const SearchSpace& space() const { return space_; }

 private:
  const prune::PrunedModel& cut(pretrained::Subblock subblock, size_t variant) const;
  void fill(const nn::Model& piece, int64_t layer, size_t attention, size_t ffn) const;

  std::filesystem::path teacher_;
  const descriptor::ModelFamilies& families_;
  const DecoderPieces& pieces_;
  const SearchSpace& space_;
  // One child of the teacher per variant index, with that variant in every layer that has it; opened when needed.
  mutable std::map<std::pair<pretrained::Subblock, size_t>, std::unique_ptr<prune::PrunedModel>> cuts_;
  mutable std::map<std::string, at::Tensor> linear_;  // tensors of variants that are linear layers, by parameter
  std::map<std::pair<int64_t, pretrained::Subblock>, std::map<size_t, SubblockTensors>> trained_;
};

/// The file of a variant in a folder of variants.
std::filesystem::path variant_file(const std::filesystem::path& folder, const SearchSpace& space, const Place& place);
/// Stores those of these variants that were trained in `folder`, one file each; see read_trained.
void write_trained(const std::filesystem::path& folder, const Library& library, const std::vector<Place>& places);
/// Reads trained variants, if the folder has them all; returns false, and changes nothing, otherwise.
bool read_trained(const std::filesystem::path& folder, Library& library, const std::vector<Place>& places);

}  // namespace lehr::search
