// Mutations of JSON as a tree, so that most inputs get beyond the syntax.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lehr::fuzz {

/// Changes JSON at `data`, in place: keys, values and parts of the tree, with interesting numbers and names; now and
/// then single bytes. Returns the new size, at most `most`. Text that is not JSON is changed by bytes.
size_t mutate_json(uint8_t* data, size_t size, size_t most, unsigned seed);

}  // namespace lehr::fuzz
