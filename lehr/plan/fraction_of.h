// A measured rate as a fraction of the peak, for the calibrations.
#pragma once

namespace lehr::plan {

/// Returns `flops` per second over the peak of `tflops` TFLOP/s. Throws a runtime error that names `what` if that is
/// above 1: one of the two was measured wrongly.
double fraction_of(double flops, double tflops, const char* what);

}  // namespace lehr::plan
