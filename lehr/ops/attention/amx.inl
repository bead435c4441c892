// The kernels of attention with matmuls in tile registers, which LEHR_TILES selects in tile.inl.
#pragma once

#include "lehr/ops/attention/kernel.inl"
