"""Converts the weights of the registry packages to the files in assets/models.

With `--f32 FOLDER` it writes the same networks without quantisation or rounding, for the tests.

all-MiniLM-L6-v2: tensors keep their names. Matrices are quantised to blocks of GGUF's Q8_0 (bytes of shape
`[rows, columns / 32 * 34]`, with the entry `dtype.NAME: q8_0` in the metadata of the file).
EfficientNet-Lite0: batch norms are folded into the convolutions, and weights are rounded to half precision.
"""

import argparse
from pathlib import Path

import numpy as np

import sources


def q8_blocks(x):
    """Quantises like GGUF's reference, in blocks of 32 along the last axis: a half-precision scale, then 32 signed bytes."""
    blocks = x.astype(np.float32).reshape(-1, 32)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    scaled = blocks * inverse
    # Ties are rounded away from 0.
    quants = (np.sign(scaled) * np.floor(np.abs(scaled) + np.float32(0.5))).astype(np.int8)
    made = np.concatenate([scale.astype(np.float16).view(np.uint8), quants.view(np.uint8)], axis=1)
    return made.reshape(*x.shape[:-1], -1)


def minilm():
    """The unchanged tensors that the encoder uses."""
    unused = ("pooler.", "embeddings.position_ids")
    return {name: values for name, values in sources.minilm_weights().items() if not name.startswith(unused)}


def quantized(tensors):
    """Quantised matrices, unchanged vectors, and the metadata that lists the quantised names."""
    matrices = [name for name, values in tensors.items() if values.ndim == 2 and values.shape[1] % 32 == 0]
    made = {name: q8_blocks(values) if name in matrices else values for name, values in tensors.items()}
    return made, {f"dtype.{name}": "q8_0" for name in matrices}


def efficientnet():
    """The network with folded batch norms and shorter names."""
    weights, made = sources.efficientnet_weights(), {}

    def fold(to, name, norm):
        gain, shift, mean, variance = (
            weights[f"{norm}.{part}"].astype(np.float64) for part in ("weight", "bias", "running_mean", "running_var")
        )
        gain = gain / np.sqrt(variance + sources.VISION_EPSILON)
        made[f"{to}.weight"] = (weights[f"{name}.weight"] * gain[:, None, None, None]).astype(np.float32)
        made[f"{to}.bias"] = (shift - mean * gain).astype(np.float32)

    fold("stem", "_conv_stem", "_bn0")
    for index, _, _, expansion, _ in sources.efficientnet_blocks():
        name = f"_blocks.{index}"
        if expansion != 1:
            fold(f"blocks.{index}.expand", f"{name}._expand_conv", f"{name}._bn0")
        fold(f"blocks.{index}.depthwise", f"{name}._depthwise_conv", f"{name}._bn1")
        fold(f"blocks.{index}.project", f"{name}._project_conv", f"{name}._bn2")
    fold("head", "_conv_head", "_bn1")
    made["classifier.weight"], made["classifier.bias"] = weights["_fc.weight"], weights["_fc.bias"]
    return made


def halved(tensors):
    """Matrices and kernels in half precision. Biases stay in single precision, because sums start with them."""
    return {name: values.astype(np.float16) if values.ndim > 1 else values for name, values in tensors.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--f32", type=Path, metavar="FOLDER", help="write only the unquantised f32 networks, to this folder")
    arguments = parser.parse_args()
    if arguments.f32:
        arguments.f32.mkdir(parents=True, exist_ok=True)
        sources.save(minilm(), arguments.f32 / "minilm.safetensors")
        sources.save(efficientnet(), arguments.f32 / "efficientnet.safetensors")
        return
    sources.MODELS.mkdir(parents=True, exist_ok=True)
    tensors, metadata = quantized(minilm())
    sources.save(tensors, sources.MODELS / "minilm.safetensors", metadata)
    (sources.MODELS / "tokenizer.json").write_bytes(sources.minilm_file("tokenizer.json"))
    sources.save(halved(efficientnet()), sources.MODELS / "efficientnet.safetensors")


if __name__ == "__main__":
    main()
