// Polling of conditions that other ranks bring about.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace lehr::mesh {

/// Calls `done` until it returns true, with growing pauses. Returns false if it has not by the deadline.
template <class Done>
bool wait_until(std::chrono::steady_clock::time_point deadline, const Done& done) {
  using std::chrono::milliseconds;
  for (milliseconds pause(1);; pause = std::min(pause * 2, milliseconds(200))) {
    if (done()) {
      return true;
    }
    if (std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace lehr::mesh
