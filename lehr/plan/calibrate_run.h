// The figures of this computer's CPU for the sizes of one run.
#pragma once

#include "lehr/metric/throughput.h"
#include "lehr/plan/machine.h"
#include "lehr/train/config.h"
#include "lehr/train/train_spec.h"

namespace lehr::plan {

/// Returns `cpu`, a machine of calibrate_cpu, with the fractions and the layer overhead that the model of `config` has
/// here: its own matmuls, attention and other operators, in its dtype, at its micro-batch. Small matmuls and short
/// sequences reach less of the peak than the ones that calibrate_cpu takes. Runs micro-batches of the whole model,
/// forward and backward, on one rank, until at least `seconds` and three of them have passed. Matmuls of experts have
/// the same fraction as the others.
///
/// Throws a usage error if a step does not fit into the memory of this computer, and like make_plan; a runtime error if
/// matmuls or attention are faster than the peak. `clock` gives the time; only tests replace it.
Machine calibrate_cpu_for(
    const Machine& cpu,
    const train::TrainConfig& config,
    const train::TrainSpec& spec,
    double seconds = 1,
    const metric::ThroughputMeter::Clock& clock = metric::ThroughputMeter::steady_seconds);

}  // namespace lehr::plan
