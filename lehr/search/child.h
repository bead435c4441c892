// A chosen child as an ordinary model folder.
#pragma once

#include <filesystem>

#include "lehr/pretrained/model_output.h"
#include "lehr/search/library.h"

namespace lehr::search {

/// The split of the weights into files: by size, or one per sub-block (pretrained/subblocks.h).
enum class ChildLayout { shards, subblocks };

/// Writes the child: weights of the chosen variants, trained or cut from the teacher, and all other weights of the
/// teacher, in the teacher's dtypes; config.json with block configs if layers differ; the tokenizer's files. The folder
/// appears under its name only when everything is on disk. Throws the errors of pretrained::write_model_folder.
pretrained::WrittenModel write_child(
    const Library& library,
    const Choice& choice,
    const std::filesystem::path& teacher,
    const std::filesystem::path& output,
    const descriptor::ModelFamilies& families,
    ChildLayout layout = ChildLayout::shards);

}  // namespace lehr::search
