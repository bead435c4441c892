// Reports of ranks about their state, through the store that they share. Each rank's watchdog writes them on a thread
// of its own, even while the rank computes or hangs.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace lehr::mesh {

/// @name Keys of the store
/// @{
inline const std::string kAlarm = "alarm";  ///< Set after a failure: every rank then keeps its report up to date.
std::string where_key(int64_t rank);        ///< That report.
/// A request for reports, numbered from 1, and a rank's answer.
std::string request_key(int64_t number);
std::string answer_key(int64_t number, int64_t rank);
/// @}

/// The reason in messages when the store does not answer.
inline const std::string kStoreGone = "the process that holds the ranks' store (rank 0 or the launcher) has ended";

/// Requests reports from all ranks. Returns them by rank once all have answered, or after `patience`: "waits in
/// all_reduce number 17 on axis tp for 31 s, in step 12"; nullopt for a rank that did not answer, because it is stopped
/// or not connected yet. Throws the store's errors.
std::vector<std::optional<std::string>> request_reports(
    c10d::Store& store, int64_t world_size, std::chrono::milliseconds patience);

}  // namespace lehr::mesh
