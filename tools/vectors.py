"""Makes tests/vectors/ops: cases of ops that ONNX's own tests leave out, judged by numpy, gguf and onnxruntime.

pip install -r tools/requirements.txt; python tools/vectors.py

The layout is that of tests/vectors/onnx, with `tolerance` and `source` beside `attrs`. Floats are computed in 64 bits where the library can, and rounded
once, so that the bound is the op's own error.
"""

import json

import numpy as np
import onnxruntime
from gguf.quants import Q4_0, Q8_0
from onnx import helper
from safetensors.numpy import save_file

import sources

FOLDER = sources.ROOT / "tests" / "vectors" / "ops"
TYPES = {"float32": "FLOAT", "float16": "FLOAT16", "int32": "INT32", "uint32": "UINT32", "int8": "INT8", "uint8": "UINT8", "bool": "BOOL"}
random = np.random.default_rng(16)
files = {}


def ulp(value):
    return {"metricType": "ULP", "value": value}


def atol(value):
    return {"metricType": "ATOL", "value": float(value)}


def case(file, name, op, inputs, outputs, tolerance, source, **attrs):
    """Adds a case. `inputs` and `outputs` are arrays; `None` is an absent input."""
    tensors, cases = files.setdefault(file, ({}, []))
    name = f"{op}_{name}" if name else op
    assert all(name != other["case"] for other in cases), name
    row = {"case": name, "op": op, "domain": "", "opset": 22, "attrs": attrs, "dtypes": {}, "scalars": []}
    for key, arrays in (("inputs", inputs), ("outputs", outputs)):
        row[key] = []
        for i, array in enumerate(arrays):
            if array is None:
                row[key].append("")
                continue
            value = f"{key[:-1]}{i}"
            array = np.ascontiguousarray(array)
            row[key].append(value)
            row["dtypes"][value] = TYPES[str(array.dtype)]
            tensors[f"{name}/{value}"] = array
    row |= {"tolerance": tolerance, "source": source}
    cases.append(row)


def ort(op, inputs, output, domain="", **attrs):
    """One node of onnxruntime; its first output, of type `output`."""
    names = [f"input{i}" for i in range(len(inputs))]
    node = helper.make_node(op, names, ["output"], domain=domain, **attrs)
    element = helper.np_dtype_to_tensor_dtype
    given = [helper.make_tensor_value_info(n, element(v.dtype), v.shape) for n, v in zip(names, inputs)]
    made = helper.make_tensor_value_info("output", element(np.dtype(output)), None)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], op, given, [made]), opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip(names, inputs)))[0]


def normal(*shape, dtype="f4"):
    return random.normal(size=shape).astype(dtype)


def moves():
    """flip, stack and embedding: not a bit changes."""
    kinds = {
        "f32": normal,
        "f16": lambda *shape: normal(*shape, dtype="f2"),
        "i32": lambda *shape: random.integers(-(2**31), 2**31, shape).astype("i4"),
        "u8": lambda *shape: random.integers(0, 256, shape).astype("u1"),
        "bool": lambda *shape: random.integers(0, 2, shape).astype(bool),
    }
    for kind, make in kinds.items():
        x = make(3, 5, 7)
        for axis in (0, 1, -1):
            case("flip", f"{kind}_axis_{axis}", "flip", [x], [np.flip(x, axis)], ulp(0), "numpy.flip", axis=axis)
        parts = [make(2, 3) for _ in range(3)]
        for axis in (0, 1, -1):
            case("stack", f"{kind}_axis_{axis}", "stack", parts, [np.stack(parts, axis)], ulp(0), "numpy.stack", axis=axis)
        table, ids = make(11, 6), random.integers(0, 11, (2, 5)).astype("i4")
        case("embedding", kind, "embedding", [table, ids], [table[ids]], ulp(0), "numpy.take")
    one = normal(4)
    case("stack", "one_part", "stack", [one], [np.stack([one])], ulp(0), "numpy.stack", axis=0)
    ids = np.array([[0, 10], [3, 3]], "u4")
    table = normal(11, 6)
    case("embedding", "u32_ids", "embedding", [table, ids], [table[ids]], ulp(0), "numpy.take")
    for name, kind, block in (("q8_0", Q8_0, 32), ("q4_0", Q4_0, 32)):
        table = normal(9, 64)
        kind.block_size = block
        rows = kind.dequantize_blocks(kind.quantize_blocks(table.reshape(-1, block))).reshape(table.shape)
        ids = random.integers(0, 9, 6).astype("i4")
        case("embedding", name, "embedding", [table, ids], [rows[ids]], ulp(0), "gguf", blocks=name)


def blocks():
    for name, kind, block in (("q8_0", Q8_0, 32), ("q4_0", Q4_0, 32), ("q4_128", Q4_0, 128)):
        kind.block_size = block
        for scale in (1e-3, 1.0, 3e4):
            x = (normal(5, 256) * scale).astype("f4")
            made = kind.quantize_blocks(x.reshape(-1, block))
            y = kind.dequantize_blocks(made).reshape(x.shape)
            case("quantize", f"{name}_{scale:g}", "quantize", [x], [y], ulp(0), "gguf", blocks=name)


def bytes_():
    def scale_of(x, axes):
        return (np.abs(x).max(axes, keepdims=True).astype("f4") / np.float32(127)).astype("f4")

    for name, shape in (("vector", (67,)), ("matrix", (5, 33)), ("image", (2, 3, 4, 5))):
        x = normal(*shape)
        scale = scale_of(x, tuple(range(x.ndim)))
        q = ort("QuantizeLinear", [x, scale.reshape(()), np.zeros((), "i1")], "i1")
        case("quantize_i8", name, "quantize_i8", [x], [q, scale], ulp(0), "onnxruntime QuantizeLinear")
        y = ort("DequantizeLinear", [q, scale.reshape(())], "f4")
        case("dequantize_i8", name, "dequantize_i8", [q, scale], [y], ulp(0), "onnxruntime DequantizeLinear")
        for axis in range(x.ndim):
            scale = scale_of(x, tuple(i for i in range(x.ndim) if i != axis))
            flat = scale.reshape(-1)
            q = ort("QuantizeLinear", [x, flat, np.zeros(flat.shape, "i1")], "i1", axis=axis)
            case("quantize_i8", f"{name}_{axis}", "quantize_i8_channels", [x], [q, scale], ulp(0), "onnxruntime QuantizeLinear", axis=axis)
            y = ort("DequantizeLinear", [q, flat], "f4", axis=axis)
            case("dequantize_i8", f"{name}_{axis}", "dequantize_i8", [q, scale], [y], ulp(0), "onnxruntime DequantizeLinear")
    half = (np.arange(-127, 128) + 0.5).astype("f4")
    half = np.concatenate([half[np.abs(half) <= 126.5], [127.0]]).astype("f4")
    q = ort("QuantizeLinear", [half, np.ones((), "f4"), np.zeros((), "i1")], "i1")
    case("quantize_i8", "ties", "quantize_i8", [half], [q, np.ones(1, "f4")], ulp(0), "onnxruntime QuantizeLinear")
    for name, m, k, n in (("row", 1, 17, 9), ("rows", 7, 64, 33), ("long", 3, 1000, 5)):
        x, weight = normal(m, k), random.integers(-127, 128, (n, k)).astype("i1")
        for per_row in (False, True):
            scale = random.uniform(1e-3, 2e-2, n if per_row else 1).astype("f4")
            for bias in (None, normal(n)):
                wide = weight.astype("f8") * (scale.astype("f8")[:, None] if per_row else scale.astype("f8"))
                y = x.astype("f8") @ wide.T + (0 if bias is None else bias.astype("f8"))
                terms = np.abs(x).max() * np.abs(wide).max()
                label = f"{name}_{'rows' if per_row else 'one'}_{'bias' if bias is not None else 'plain'}"
                bound = atol(k**0.5 * terms * 2.0**-23 * 2)
                case("linear_i8", label, "linear_i8", [x, weight, scale, bias], [y.astype("f4")], bound, "numpy, float64")


def rotations():
    for layout, interleaved in (("half", 0), ("interleaved", 1)):
        for name, heads, s, d, rotary, position, base in (
            ("small", 1, 3, 4, 4, 0, 10_000.0),
            ("heads", 4, 9, 16, 16, 5, 10_000.0),
            ("partial", 2, 5, 24, 8, 3, 10_000.0),
            ("far", 2, 4, 32, 32, 1000, 500_000.0),
        ):
            x = normal(1, heads, s, d)
            places = np.arange(position, position + s)
            angles = places[:, None] * base ** (-2.0 * np.arange(rotary // 2) / rotary)
            cos, sin = np.cos(angles).astype("f4"), np.sin(angles).astype("f4")
            part = np.ascontiguousarray(x[..., :rotary])
            ids = np.arange(s, dtype="i8")[None]
            y = ort("RotaryEmbedding", [part, ids, cos, sin], "f4", domain="com.microsoft", interleaved=interleaved)
            y = np.concatenate([y, x[..., rotary:]], -1)
            # The angle is a product in f32: half a unit of it, and of the function.
            bound = atol((position + s + 4) * 2.0**-23 * np.abs(x).max())
            attrs = {"layout": layout, "position": position, "base": base} | ({"rotary": rotary} if rotary != d else {})
            case("rope", f"{name}_{layout}", "rope", [x], [y], bound, "onnxruntime com.microsoft RotaryEmbedding", **attrs)
            bound = atol(2 * 2.0**-23 * np.abs(x).max())
            case("rope", f"{name}_{layout}", "rope_with", [x, cos, sin], [y], bound, "onnxruntime com.microsoft RotaryEmbedding", layout=layout)


def distances():
    for name, n, m, d in (("tiny", 1, 1, 1), ("small", 3, 4, 5), ("wide", 5, 7, 300)):
        a, b = normal(n, d), normal(m, d)
        wide, narrow = a.astype("f8"), b.astype("f8")
        y = ort("CDist", [wide, narrow], "f8", domain="com.microsoft", metric="euclidean")
        bound = ulp(4 + int(d**0.5))
        case("distances", name, "pairwise_l2", [a, b], [y.astype("f4")], bound, "onnxruntime com.microsoft CDist")
        norms = np.linalg.norm(wide, axis=-1)[:, None] * np.linalg.norm(narrow, axis=-1)[None]
        y = (wide @ narrow.T) / norms
        close = atol((4 + d**0.5) * 2.0**-24)
        case("distances", name, "pairwise_cosine", [a, b], [y.astype("f4")], close, "numpy, float64")
        c = normal(n, d)
        y = np.linalg.norm(wide - c.astype("f8"), axis=-1)
        case("distances", name, "l2_distance", [a, c], [y.astype("f4")], bound, "numpy.linalg.norm", axis=-1)
        dots = (wide * c).sum(-1) / (np.linalg.norm(wide, axis=-1) * np.linalg.norm(c.astype("f8"), axis=-1))
        case("distances", name, "cosine_similarity", [a, c], [dots.astype("f4")], close, "numpy, float64", axis=-1, eps=1e-8)
    # Near points, whose distance is not the difference of large squares.
    a = (1000 + normal(4, 16)).astype("f4")
    b = (a + normal(4, 16) * np.float32(1e-2)).astype("f4")
    y = np.sqrt(((a.astype("f8")[:, None] - b.astype("f8")[None]) ** 2).sum(-1))
    case("distances", "near", "pairwise_l2", [a, b], [y.astype("f4")], ulp(8), "numpy, float64")
    y = np.linalg.norm(a.astype("f8") - b.astype("f8"), axis=-1)
    case("distances", "near", "l2_distance", [a, b], [y.astype("f4")], ulp(8), "numpy.linalg.norm", axis=-1)
    # Vectors shorter than the epsilon.
    a, b = (normal(3, 8) * np.float32(1e-4)).astype("f4"), normal(3, 8)
    eps = 0.5
    length = lambda v: np.maximum(np.linalg.norm(v.astype("f8"), axis=-1), eps)
    y = (a.astype("f8") * b).sum(-1) / (length(a) * length(b))
    case("epsilon", "short", "cosine_similarity", [a, b], [y.astype("f4")], atol(1e-10), "numpy, float64", axis=-1, eps=eps)


def epsilons():
    """Norms of numbers whose variance is less than epsilon: without it, results are many times as large."""
    for eps in (1e-5, 1e-2):
        small = np.float32((eps / 10) ** 0.5)
        name = f"epsilon_{eps:g}"
        x = (normal(3, 16) * small).astype("f4")
        w, b = normal(16), normal(16)
        wide = x.astype("f8")
        inverse = 1 / np.sqrt(wide.var(-1, keepdims=True) + eps)
        mean = wide.mean(-1, keepdims=True)
        y = (wide - mean) * inverse * w + b
        outputs = [y.astype("f4")]
        case("epsilon", name, "LayerNormalization", [x, w, b], outputs, atol(4e-6), "numpy, float64", axis=-1, epsilon=eps)
        ours = ort("LayerNormalization", [x, w, b], "f4", epsilon=eps)
        assert np.abs(ours - y).max() < 1e-5
        y = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + eps) * w
        case("epsilon", name, "RMSNormalization", [x, w], [y.astype("f4")], atol(4e-6), "numpy, float64", axis=-1, epsilon=eps)
        x = (normal(2, 4, 3, 5) * small).astype("f4")
        wide, w, b = x.astype("f8"), normal(4), normal(4)
        channel = lambda v: v.astype("f8").reshape(1, 4, 1, 1)
        mean, variance = normal(4) * small, (random.uniform(0.2, 1, 4) * small**2).astype("f4")
        mean = mean.astype("f4")
        y = (wide - channel(mean)) / np.sqrt(channel(variance) + eps) * channel(w) + channel(b)
        case("epsilon", name, "BatchNormalization", [x, w, b, mean, variance], [y.astype("f4")], atol(4e-6), "numpy, float64", epsilon=eps)
        assert np.abs(ort("BatchNormalization", [x, w, b, mean, variance], "f4", epsilon=eps) - y).max() < 1e-5
        axes = (2, 3)
        y = (wide - wide.mean(axes, keepdims=True)) / np.sqrt(wide.var(axes, keepdims=True) + eps) * channel(w) + channel(b)
        case("epsilon", name, "InstanceNormalization", [x, w, b], [y.astype("f4")], atol(4e-6), "numpy, float64", epsilon=eps)
        assert np.abs(ort("InstanceNormalization", [x, w, b], "f4", epsilon=eps) - y).max() < 1e-5
        grouped = wide.reshape(2, 2, -1)
        y = (grouped - grouped.mean(-1, keepdims=True)) / np.sqrt(grouped.var(-1, keepdims=True) + eps)
        y = y.reshape(x.shape) * channel(w) + channel(b)
        case("epsilon", name, "GroupNormalization", [x, w, b], [y.astype("f4")], atol(4e-6), "numpy, float64", num_groups=2, epsilon=eps)
    # Rows shorter than 1e-12 are divided by 1e-12, as PyTorch's `normalize` does; zeros stay zeros.
    x = np.stack([np.zeros(8), random.normal(size=8) * 1e-13, random.normal(size=8) * 1e-9, random.normal(size=8)]).astype("f4")
    wide = x.astype("f8")
    y = wide / np.maximum(np.linalg.norm(wide, axis=-1, keepdims=True), 1e-12)
    case("epsilon", "tiny", "l2_normalize", [x], [y.astype("f4")], ulp(4), "numpy, float64", axis=-1)
    case("epsilon", "tiny_columns", "l2_normalize", [x.T], [y.T.astype("f4")], ulp(4), "numpy, float64", axis=0)


def functions():
    """Functions that lose digits if they are computed as they are written."""
    x = np.linspace(-40, 40, 641).astype("f4")
    wide = x.astype("f8")
    softplus = np.logaddexp(0, wide)
    # WGSL allows `exp` an error of 3 + 2 · |x| ulp.
    case("functions", "all", "Softplus", [x], [softplus.astype("f4")], ulp(48), "numpy.logaddexp, float64")
    case("functions", "all", "Mish", [x], [(wide * np.tanh(softplus)).astype("f4")], ulp(48), "numpy, float64")


def main():
    for make in (functions, moves, blocks, bytes_, rotations, distances, epsilons):
        make()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, (tensors, cases) in files.items():
        save_file(tensors, FOLDER / f"{name}.safetensors", metadata={"cases": json.dumps(cases, separators=(",", ":"))})
    print(sum(len(cases) for _, cases in files.values()), "cases in", len(files), "files")


if __name__ == "__main__":
    main()
