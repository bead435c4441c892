#!/usr/bin/env python3
"""Writes quantized tensors, and what transformers reads from them: test/data/state/quantized.

    python script/make_quantized_references.py test/data/state/quantized     (needs torch, transformers, safetensors)

model.safetensors has random bytes as MXFP4 blocks and scales (all but 255, for which transformers and the format's
definition differ), and a random float8 matrix with a scale per block; plain.safetensors has their values.
"""
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

torch.manual_seed(1)
folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
blocks = torch.randint(256, (3, 10, 2, 16), dtype=torch.uint8)
scales = torch.randint(255, (3, 10, 2), dtype=torch.uint8)
# Ordinary scales, and both ends.
scales[0] = torch.randint(118, 130, (10, 2))
scales[1, 0], scales[1, 1] = torch.tensor([0, 1]), torch.tensor([254, 253])
finite = torch.tensor([byte for byte in range(256) if byte & 0x7F != 0x7F], dtype=torch.uint8)
values = finite[torch.randint(len(finite), (128, 256))].view(torch.float8_e4m3fn)
inverse = torch.rand(1, 2) * 1e-3
save_file({"experts.up_blocks": blocks, "experts.up_scales": scales, "q.weight": values, "q.weight_scale_inv": inverse,
           "q.bias": torch.randn(4)}, folder / "model.safetensors")
save_file({"experts.up": convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16).contiguous(),
           "q.weight": Fp8Dequantize(None)._dequantize_one(values, inverse, torch.float32)},
          folder / "plain.safetensors")
