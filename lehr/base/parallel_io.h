// Parallel I/O: runs tasks that mostly wait for a disk on several threads.
#pragma once

#include <cstdint>
#include <functional>

namespace lehr {

/// Number of concurrent reads that keeps a disk busy while one thread copies.
inline constexpr int64_t kConcurrentReads = 4;

/// Calls work(0), ..., work(count - 1), each once, on up to `threads` threads (on the calling thread if `threads` is
/// 1). The calls run without grad mode and, if there are several threads, with one ATen thread each. Returns after all
/// calls have ended. If a call throws, no further calls start, and the exception of the smallest throwing index is
/// rethrown.
void parallel_io(int64_t threads, int64_t count, const std::function<void(int64_t)>& work);

}  // namespace lehr
