// The end of a program.
#pragma once

namespace lehr {

/// Ends the process with `code`, what it wrote flushed, and leaves LibTorch's tables of operators to the system, as
/// taking them apart is a third of the time of a short command (80 ms). The usual way is taken, which runs what others
/// want to do at the end, where there is a GPU, as its profilers write their reports then, and under a sanitizer. To be
/// called by main, where nothing that has to be closed is left.
[[noreturn]] void leave(int code);

}  // namespace lehr
