"""Makes blocks.safetensors: numbers and the blocks that PyPI's `gguf` (llama.cpp's own package, MIT) makes of them.

pip install gguf numpy safetensors; python make.py
"""

import numpy as np
from gguf.quants import Q4_0, Q8_0
from safetensors.numpy import save_file

random = np.random.default_rng(7)
half = np.arange(-64, 64, dtype=np.float32) + np.float32(0.5)
edges = np.arange(-8, 8, dtype=np.float32).repeat(8) + np.float32(0.5)
edges = np.clip(edges + np.spacing(edges) * np.tile(np.arange(-4, 4), 16).astype(np.float32), -7.9, 7.9)
normal = random.normal(size=128).astype(np.float32)
rows = [
    np.zeros(128),
    -np.zeros(128),
    np.full(128, 2.5),
    np.full(128, -2.5),
    # The largest magnitude with both signs, either one first.
    np.tile([1.0, 3.0, -3.0, 0.0], 32),
    np.tile([1.0, -3.0, 3.0, 0.0], 32),
    # Rounding ties and their neighbours. With 127 or 8 as the largest magnitude, steps are whole numbers.
    np.where(np.arange(128) % 32 == 0, 127.0, half),
    np.where(np.arange(128) % 32 == 31, -8.0, edges),
    np.where(np.arange(128) % 32 == 31, 8.0, edges),
    # Subnormal and tiny numbers next to ordinary ones.
    np.where(np.arange(128) % 2 == 0, 1e-40, normal),
    # Scales that overflow f16, are subnormal in f16, or underflow to 0.
    normal * np.float32(1e38),
    normal * np.float32(1e9),
    normal * np.float32(1e-4),
    normal * np.float32(1e-6),
    normal * np.float32(1e-12),
    normal * np.float32(1e-30),
]
rows += [random.normal(size=128) * 10.0 ** random.uniform(-4, 4) for _ in range(64)]
rows += [random.uniform(-1, 1, size=128) for _ in range(16)]
x = np.clip(np.array(rows), -3.4e38, 3.4e38).astype(np.float32)


def blocks(kind, size):
    kind.block_size = size
    made = kind.quantize_blocks(x.reshape(-1, size)).reshape(len(x), -1)
    return made, kind.dequantize_blocks(made.reshape(-1, made.shape[1] * size // 128)).reshape(x.shape)


with np.errstate(all="ignore"):
    made = {"q8_0": blocks(Q8_0, 32), "q4_0": blocks(Q4_0, 32), "q4_128": blocks(Q4_0, 128)}
tensors = {"x": x}
for name, (quantized, dequantized) in made.items():
    tensors |= {name: quantized, f"{name} numbers": dequantized.astype(np.float32)}
save_file({name: np.ascontiguousarray(values) for name, values in tensors.items()}, "blocks.safetensors")
