// Work that mostly waits for a disk, done by several threads at once.
#pragma once

#include <cstdint>
#include <functional>

namespace lehr {

/// So many reads at once keep a disk busy while one thread copies.
inline constexpr int64_t kReadsAtOnce = 4;

/// Calls work(0), ..., work(count - 1), each once, on up to `threads` threads (this one only for 1), without grad mode
/// and, where there are several, with one thread for ATen in each. Returns when all calls have ended. After a call that
/// throws no further ones begin, and the exception of the smallest index that threw is thrown here.
void at_once(int64_t threads, int64_t count, const std::function<void(int64_t)>& work);

}  // namespace lehr
