// Recognition of pickles, which run code when they are read. Lehr reads none.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

namespace lehr::state {

/// Returns whether a file is a pickle, or an archive of torch.save that contains one, by its name and its first bytes.
bool is_pickle(const std::filesystem::path& name, std::string_view begin);

/// Returns a file name in `folder` that is one of pickled weights, such as pytorch_model.bin, if there is one.
std::optional<std::filesystem::path> pickled_weights(const std::filesystem::path& folder);

}  // namespace lehr::state
