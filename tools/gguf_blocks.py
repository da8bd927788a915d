"""Makes tests/vectors/gguf/types.safetensors: random blocks of GGUF's types and the numbers that PyPI's `gguf`
(llama.cpp's own package, MIT) decodes from them.

pip install gguf numpy safetensors; python3 tools/gguf_blocks.py
"""

from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from safetensors.numpy import save_file

BLOCKS = 12
# Position of the half-precision numbers in a block.
HALVES = {
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
}

random = np.random.default_rng(11)
tensors = {}
for name, halves in HALVES.items():
    kind = GGMLQuantizationType[name]
    elements, size = GGML_QUANT_SIZES[kind]
    # Two rows. An odd number of blocks per row, so that the second begins inside a group.
    blocks = random.integers(0, 256, size=(2 * BLOCKS + 2, size), dtype=np.uint8)
    for at in halves:
        scale = (random.normal(size=len(blocks)) * 10.0 ** random.uniform(-4, 2, size=len(blocks))).astype(np.float16)
        # A zero, a subnormal and a large scale.
        scale[:3] = [0.0, 3e-7, 6e4]
        blocks[:, at : at + 2] = scale.view(np.uint8).reshape(-1, 2)
    rows = blocks.reshape(2, -1)
    tensors[name.lower()] = rows
    tensors[f"{name.lower()} numbers"] = np.ascontiguousarray(dequantize(rows, kind).astype(np.float32))
save_file(tensors, Path(__file__).parent.parent / "tests/vectors/gguf/types.safetensors")
