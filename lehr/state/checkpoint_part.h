// One rank's part of a checkpoint in a folder of its own, for ranks that share no folder: from the parts of all ranks
// the checkpoint can be written later.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lehr/state/checkpoint_contents.h"
#include "lehr/state/integrity.h"

namespace lehr::state {

/// Identifies a part of a checkpoint. Its folder is named rank-R-of-N.
struct PartName {
  int64_t rank = 0;
  int64_t world_size = 1;
  auto operator<=>(const PartName&) const = default;
};
std::string folder_name(const PartName& part);
/// Returns the part of a folder of that name; nothing for other names.
std::optional<PartName> part_name(const std::string& folder_name);

/// Name of the file with the part's tensors. state::kIntegrityFile, beside it, has its size and checksum.
inline constexpr const char* kPartFile = "part.safetensors";

/// Writes a rank's contents into the new folder `folder`, and waits until they are on disk. The weights must be parts
/// of sharded tensors (WeightSet::all and parts), and there are no copies of files. Only the part of rank 0 has the
/// texts and the lists of all tensors. Returns the size and checksum of kPartFile. Throws runtime errors for disk
/// failures.
FileIntegrity write_part(const std::filesystem::path& folder, const CheckpointContents& contents, int64_t rank);

/// Returns what write_part was given. The tensors are read-only memory of the file. Throws usage errors that name the
/// file.
CheckpointContents read_part(const std::filesystem::path& folder);

/// Writes the integrity.json of a part's folder.
void write_part_integrity(const std::filesystem::path& folder, int64_t num_bytes, uint32_t crc32c);

/// Packs pairs of texts into a text, and back.
std::string pack_pairs(const std::vector<std::pair<std::string, std::string>>& pairs);
std::vector<std::pair<std::string, std::string>> unpack_pairs(const std::string& packed);

/// Packs names, dtypes and shapes into a text, and back.
std::string pack_infos(const std::vector<TensorInfo>& infos);
std::vector<TensorInfo> unpack_infos(const std::string& packed);

}  // namespace lehr::state
