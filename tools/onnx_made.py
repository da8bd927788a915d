"""Makes cases that the ONNX backend tests do not have, in their layout.

    python tools/onnx_made.py FOLDER
    ONNX_CASES=FOLDER cargo test --test onnx_vectors -- case::

Operators of com.microsoft have the outputs of onnxruntime. Whole graphs with traps of real files have those of
`onnx.reference`, where onnxruntime agrees, or of onnxruntime, where the reference does not run them.
"""

import shutil
import sys

import numpy as np
from onnx import helper

import onnx_made_graphs
import onnx_sweep
from onnx_sweep_cases import f32, i32, i64, ints, values

MS = "com.microsoft"


def microsoft(sweep):
    def case(label, op, inputs, outputs=1, constants=(), opset=17, domain=MS, **attributes):
        names = [f"x{i}" if value is not None else "" for i, value in enumerate(inputs)]
        out = [f"y{i}" for i in range(outputs)]
        node = helper.make_node(op, names, out, domain=domain, **attributes)
        feeds = {n: v for n, v in zip(names, inputs) if v is not None}
        sweep.case(f"ms_{op}_{label}", [node], feeds, out, {"": opset, MS: 1}, [f"x{i}" for i in constants], "onnxruntime")

    x = values([2, 3, 8], f32, -2, 2)
    case("plain", "Gelu", [x])
    case("plain", "QuickGelu", [x])
    case("alpha", "QuickGelu", [x], alpha=1.2)
    case("plain", "FastGelu", [x])
    case("bias", "FastGelu", [x, values([8])])
    case("plain", "BiasGelu", [x, values([8])])
    for ta in (0, 1):
        for tb in (0, 1):
            a, b = values([2, 4, 3] if ta else [2, 3, 4]), values([2, 5, 4] if tb else [2, 4, 5])
            case(f"t{ta}{tb}", "FusedMatMul", [a, b], transA=ta, transB=tb, alpha=0.5)
            case(f"t{ta}{tb}", "FusedGemm", [a[0], b[0], values([5])], transA=ta, transB=tb, alpha=0.5, beta=2.0, activation="Relu")
    case("batch_a", "FusedMatMul", [values([3, 2, 4]), values([2, 4, 5])], transBatchA=1)
    case("batch_b", "FusedMatMul", [values([2, 3, 4]), values([4, 2, 5])], transBatchB=1)
    case("batch_a_trans", "FusedMatMul", [values([4, 2, 3]), values([2, 4, 5])], transBatchA=1, transA=1)
    case("leaky", "FusedGemm", [values([3, 4]), values([4, 5])], activation="LeakyRelu", activation_alpha=0.2)
    gamma, beta, bias = values([8], seed=1), values([8], seed=2), values([8], seed=3)
    for n in (1, 4):
        case(f"plain_{n}", "SkipLayerNormalization", [x, values([2, 3, 8], seed=4), gamma, beta], n if n == 1 else 1, epsilon=1e-3)
        case(f"bias_{n}", "SkipLayerNormalization", [x, values([2, 3, 8], seed=4), gamma, beta, bias], 1)
    node = helper.make_node("SkipLayerNormalization", ["x", "s", "g", "b", "c"], ["y", "", "", "z"], domain=MS)
    sweep.case("ms_SkipLayerNormalization_sum", [node], {"x": x, "s": values([2, 3, 8], seed=4), "g": gamma, "b": beta, "c": bias}, ["y", "z"], {"": 17, MS: 1}, (), "onnxruntime")
    node = helper.make_node("SkipSimplifiedLayerNormalization", ["x", "s", "g", "c"], ["y", "", "", "z"], domain=MS, epsilon=1e-3)
    sweep.case("ms_SkipSimplifiedLayerNormalization_sum", [node], {"x": x, "s": values([2, 3, 8], seed=4), "g": gamma, "c": bias}, ["y", "z"], {"": 17, MS: 1}, (), "onnxruntime")
    case("plain", "SkipSimplifiedLayerNormalization", [x, values([2, 3, 8], seed=4), gamma])
    case("row", "SkipLayerNormalization", [x, values([3, 8], seed=4), gamma, beta])
    case("plain", "SimplifiedLayerNormalization", [x, gamma], domain="", axis=-1, epsilon=1e-3, stash_type=1)
    ids = np.array([[1, 2, 0], [4, 3, 3]], i32)
    case("plain", "EmbedLayerNormalization", [ids, np.array([[0, 1, 0], [1, 1, 0]], i32), values([5, 8]), values([6, 8], seed=1), values([2, 8], seed=2), gamma, beta], 2)
    case("mask", "EmbedLayerNormalization", [ids, None, values([5, 8]), values([6, 8], seed=1), None, gamma, beta, np.array([[1, 1, 0], [1, 1, 1]], i32)], 2)
    case("sum", "EmbedLayerNormalization", [ids, None, values([5, 8]), values([6, 8], seed=1), None, gamma, beta], 3)
    for act, params in (("Relu", None), ("LeakyRelu", [0.2]), ("Clip", [0.0, 1.5]), ("HardSigmoid", [0.3, 0.4]), ("Sigmoid", None), ("Tanh", None)):
        extra = {"activation_params": params} if params else {}
        case(act.lower(), "FusedConv", [values([1, 2, 5, 5]), values([3, 2, 3, 3], f32, -1, 1), values([3])], activation=act, pads=[1, 1, 1, 1], **extra)
    case("sum", "FusedConv", [values([1, 2, 5, 5]), values([3, 2, 3, 3], f32, -1, 1), values([3]), values([1, 3, 5, 5], seed=5)], activation="Relu", pads=[1, 1, 1, 1])

    # Attention.
    h, d = 2, 4
    for label, extra, more in [("plain", {}, []), ("causal", {"unidirectional": 1}, []), ("scale", {"scale": 0.3}, []),
                               ("mask", {}, [np.array([[1, 1, 0], [1, 1, 1]], i32)]), ("lengths", {}, [np.array([2, 3], i32)]),
                               ("mask_3d", {}, [np.array([[[1, 0, 0], [1, 1, 0], [1, 1, 1]]] * 2, i32)])]:
        case(label, "Attention", [x, values([8, 24], f32, -1, 1), values([24], f32, -1, 1), *more], num_heads=h, **extra)
    case("past", "Attention", [x, values([8, 24], f32, -1, 1), values([24], f32, -1, 1), None, values([2, 2, h, 5, d], seed=3)], 2, num_heads=h, unidirectional=1)
    case("bias", "Attention", [x, values([8, 24], f32, -1, 1), values([24], f32, -1, 1), None, None, values([2, h, 3, 3], seed=3)], num_heads=h)
    q, k, v = values([2, 3, 8], f32, -1, 1, 1), values([2, 5, 8], f32, -1, 1, 2), values([2, 5, 8], f32, -1, 1, 3)
    case("plain", "MultiHeadAttention", [q, k, v], num_heads=h)
    case("scale", "MultiHeadAttention", [q, k, v], num_heads=h, scale=0.2)
    case("bias", "MultiHeadAttention", [q, k, v, values([24], f32, -1, 1)], num_heads=h)
    case("wide", "MultiHeadAttention", [q, k, values([2, 5, 12], f32, -1, 1)], num_heads=h)
    case("mask", "MultiHeadAttention", [q, k, v, None, np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], i32)], num_heads=h)
    case("lengths", "MultiHeadAttention", [q, k, v, None, np.array([3, 5], i32)], num_heads=h)
    case("scores", "MultiHeadAttention", [q, k, v, None, None, values([2, h, 3, 5], seed=7)], num_heads=h)
    case("scores_one", "MultiHeadAttention", [q, k, v, None, None, values([1, h, 3, 5], seed=7)], num_heads=h)
    case("past", "MultiHeadAttention", [q, values([2, 3, 8]), values([2, 3, 8], seed=2), None, None, None, values([2, h, 4, d]), values([2, h, 4, d], seed=9)], 3, num_heads=h)
    case("past_empty", "MultiHeadAttention", [q, values([2, 3, 8]), values([2, 3, 8], seed=2), None, None, None, values([2, h, 0, d]), values([2, h, 0, d], seed=9)], 3, num_heads=h)
    case("causal", "MultiHeadAttention", [q, values([2, 3, 8]), values([2, 3, 8], seed=2)], num_heads=h, unidirectional=1)
    case("cross", "MultiHeadAttention", [q, values([2, h, 5, d]), values([2, h, 5, d], seed=2)], num_heads=h)
    cos, sin = np.cos(values([12, 4], f32, 0, 6)).astype(f32), np.sin(values([12, 4], f32, 0, 6)).astype(f32)
    for inter in (0, 1):
        for label, ids in (("offset", ints(2)), ("ids", np.array([[0, 1, 2], [5, 6, 7]], i64))):
            case(f"3d_{label}_{inter}", "RotaryEmbedding", [values([2, 3, 16]), ids, cos, sin], interleaved=inter)
            case(f"4d_{label}_{inter}", "RotaryEmbedding", [values([2, 2, 3, 8]), ids, cos, sin], interleaved=inter)
            case(f"partial_{label}_{inter}", "RotaryEmbedding", [values([2, 3, 16]), ids, cos[:, :2].copy(), sin[:, :2].copy()], interleaved=inter, rotary_embedding_dim=4, num_heads=2)
    n, g, d = 4, 2, 16
    cos, sin = np.cos(values([12, 8], f32, 0, 6)).astype(f32), np.sin(values([12, 8], f32, 0, 6)).astype(f32)
    for label, s, past, lengths, total, extra in [
        ("prompt", 3, 0, [2, 2], 3, {}), ("token", 1, 4, [4, 4], 5, {}), ("token_uneven", 1, 4, [4, 2], 5, {}),
        ("rotary", 3, 0, [2, 2], 3, {"do_rotary": 1}), ("rotary_token", 1, 4, [4, 4], 5, {"do_rotary": 1}), ("rotary_pairs", 1, 4, [4, 3], 5, {"do_rotary": 1, "rotary_interleaved": 1}),
        ("window", 3, 0, [2, 2], 3, {"local_window_size": 2}), ("window_token", 1, 4, [4, 4], 5, {"local_window_size": 2}), ("softcap", 3, 0, [2, 2], 3, {"softcap": 1.5}),
        ("scale", 3, 0, [2, 2], 3, {"scale": 0.4}), ("chunk", 2, 4, [5, 5], 6, {}),
    ]:
        b = 1 if label == "chunk" else 2
        tables = [cos, sin] if "do_rotary" in extra else []
        inputs = [values([b, s, n * d], f32, -1, 1, 1), values([b, s, g * d], f32, -1, 1, 2), values([b, s, g * d], f32, -1, 1, 3),
                  values([b, g, past, d], f32, -1, 1, 4), values([b, g, past, d], f32, -1, 1, 5), np.array(lengths[:b], i32), np.array(total, i32), *tables]
        for cache in inputs[3:5]:
            for row, length in enumerate(lengths[:b]):
                cache[row, :, max(length + 1 - s, 0):] = 0  # What is behind the last key is not defined.
        case(label, "GroupQueryAttention", inputs, 3, num_heads=n, kv_num_heads=g, **extra)
        if label in ("prompt", "token"):
            packed = values([b, s, (n + 2 * g) * d], f32, -1, 1, 6)
            case("packed_" + label, "GroupQueryAttention", [packed, None, None, *inputs[3:]], 3, num_heads=n, kv_num_heads=g, **extra)

    # Quantised.
    for t in (np.uint8, np.int8):
        name = np.dtype(t).name
        a, b = values([2, 3, 4], t, -100, 100), values([3, 4], t, -100, 100, 1)
        scale = lambda s: np.array(s, f32)
        zero = lambda z: np.array(z, t)
        for op in ("QLinearAdd", "QLinearMul"):
            case(name, op, [a, scale(0.05), zero(3), b, scale(0.03), zero(7), scale(0.08), zero(5)])
        case(name, "QLinearSigmoid", [a, scale(0.05), zero(3), scale(1 / 256), zero(0)], constants=(1, 2, 3, 4))
        case(name, "QLinearLeakyRelu", [a, scale(0.05), zero(3), scale(0.04), zero(5)], constants=(1, 2, 3, 4), alpha=0.2)
        case(name, "QLinearGlobalAveragePool", [values([1, 3, 4, 5], t, -100, 100), scale(0.05), zero(3), scale(0.04), zero(5)], channels_last=0)
        case(name + "_last", "QLinearGlobalAveragePool", [values([1, 4, 5, 3], t, -100, 100), scale(0.05), zero(3), scale(0.04), zero(5)], channels_last=1)
        case(name, "QLinearAveragePool", [values([1, 3, 4, 5], t, -100, 100), scale(0.05), zero(3), scale(0.04), zero(5)], kernel_shape=[2, 2])
        case(name, "QLinearConcat", [scale(0.05), zero(2), values([2, 3], t, -100, 100), scale(0.04), zero(3), values([2, 2], t, -100, 100), scale(0.07), zero(1)], axis=1, constants=(0, 1, 3, 4, 6, 7))
        case(name, "QGemm", [values([3, 4], t, -100, 100), scale(0.05), zero(3), values([4, 5], t, -100, 100), values([5], f32, 0.01, 0.05), values([5], t, 0, 5), values([5], i32, -300, 300), scale(0.4), zero(5)])
        case(name + "_float", "QGemm", [values([3, 4], t, -100, 100), scale(0.05), zero(3), values([5, 4], t, -100, 100), scale(0.02), zero(2), values([5], i32, -300, 300)], transB=1)
        case(name, "MatMulIntegerToFloat", [values([2, 3, 4], t, -100, 100), values([4, 5], t, -100, 100), scale(0.05), values([5], f32, 0.01, 0.05), zero(3), values([5], t, 0, 5), values([5])])
        case(name, "DynamicQuantizeMatMul", [values([2, 3, 4], f32), values([4, 5], t, -100, 100), values([5], f32, 0.01, 0.05), values([5], t, 0, 5), values([5])])
        case(name + "_one", "DynamicQuantizeMatMul", [values([3, 4], f32), values([4, 5], t, -100, 100), np.array([0.02], f32), np.array([2], t)])
        case(name, "QLinearWhere", [values([3, 4], np.bool_), values([3, 4], t, -100, 100), scale(0.05), zero(3), values([4], t, -100, 100), scale(0.03), zero(1), scale(0.06), zero(4)])
        case(name, "QuantizeLinear", [values([2, 3], f32), scale(0.05), zero(3)])
        case(name, "DequantizeLinear", [a, scale(0.05), zero(3)])
        case(name, "QAttention", [values([2, 3, 8], np.uint8, 0, 255), values([8, 24], t, -100, 100), values([24], f32, -1, 1), scale(0.01), scale(0.01), None, np.array(100, np.uint8), zero(2)], num_heads=2, constants=(1, 4, 7))
        case(name + "_causal", "QAttention", [values([2, 3, 8], np.uint8, 0, 255), values([8, 24], t, -100, 100), values([24], f32, -1, 1), scale(0.01), values([24], f32, 0.005, 0.02), None, np.array(100, np.uint8), values([24], t, 0, 4)], num_heads=2, unidirectional=1, constants=(1, 4, 7))
    for bits in (4, 8):
        for block, kk, nn in ((16, 32, 5), (16, 40, 3), (32, 48, 4)):
            blocks = -(-kk // block)
            per = block * bits // 8
            w = values([nn, blocks, per], np.uint8, 0, 255)
            s = values([nn, blocks], f32, 0.01, 0.1)
            zeros = values([nn, -(-blocks * bits // 8)], np.uint8, 0, 255, 3)
            case(f"{bits}_{block}_{kk}", "MatMulNBits", [values([2, 3, kk]), w, s], constants=(1, 2), K=kk, N=nn, bits=bits, block_size=block)
            case(f"{bits}_{block}_{kk}_zeros", "MatMulNBits", [values([2, 3, kk]), w, s, zeros], constants=(1, 2, 3), K=kk, N=nn, bits=bits, block_size=block)
            case(f"{bits}_{block}_{kk}_flat", "MatMulNBits", [values([2, 3, kk]), w, s.reshape(-1), zeros.reshape(-1)], constants=(1, 2, 3), K=kk, N=nn, bits=bits, block_size=block)
    kk, nn = 32, 5
    case("bias", "MatMulNBits", [values([2, 3, kk]), values([nn, 2, 8], np.uint8, 0, 255), values([nn, 2], f32, 0.01, 0.1), None, None, values([nn])], constants=(1, 2, 5), K=kk, N=nn, bits=4, block_size=16)
    case("float_zeros", "MatMulNBits", [values([2, 3, kk]), values([nn, 2, 8], np.uint8, 0, 255), values([nn, 2], f32, 0.01, 0.1), values([nn, 2], f32, 3, 9)], constants=(1, 2, 3), K=kk, N=nn, bits=4, block_size=16)
    case("plain", "GatherND", [values([2, 3, 4]), np.array([[0, 1], [1, 2]], i64)])
    case("plain", "ExpandDims", [values([2, 3]), np.array(1, i32)])
    case("plain", "Trilu", [values([3, 4])])


def main():
    folder = sys.argv[1]
    shutil.rmtree(folder, ignore_errors=True)
    sweep = onnx_sweep.Sweep(folder)
    microsoft(sweep)
    onnx_made_graphs.graphs(sweep)
    print(f"{sweep.written} cases, {len(sweep.refused)} refused, {len(sweep.disputed)} disputed")
    print("disputed:", *sweep.disputed)
    for name, reason in sweep.refused.items():
        print(" ", name, reason)


if __name__ == "__main__":
    main()
