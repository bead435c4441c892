// The last collectives of each rank, on the disk after a failure.
#pragma once

#include <string>

#include "lehr/train/ranks.h"

namespace lehr::train {

/// Writes this rank's last collectives and messages to flight_record/rank_N.txt in the run's folder, by
/// mesh::CollectiveLog::text, after a line with its state. Does nothing on one device, and for ranks that are threads.
/// Throws nothing, so as not to hide the failure that it records: if the file cannot be written, there is none.
void write_flight_record(const std::string& dump_folder, const Ranks& ranks) noexcept;

}  // namespace lehr::train
