"""Writes tests/data/recurrent.safetensors: the outputs of onnxruntime for RNN, GRU and LSTM layers with all their settings."""

import json

import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from safetensors.numpy import save_file

import sources

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}

# Operator; steps, batch, input, hidden; attributes; the optional inputs that are given.
CASES = [
    ("RNN", (4, 3, 2, 5), {}, ["bias", "h"]),
    ("RNN", (6, 3, 2, 5), {"direction": "reverse", "clip": 0.4}, ["bias", "lengths", "h"]),
    ("RNN", (3, 2, 4, 70), {"activations": ["Relu"]}, []),
    ("RNN", (3, 2, 4, 3), {"activations": ["Affine"], "activation_alpha": [0.7], "activation_beta": [0.1]}, []),
    ("RNN", (3, 2, 4, 3), {"activations": ["ScaledTanh"], "activation_alpha": [0.8], "activation_beta": [1.3]}, []),
    ("RNN", (3, 2, 4, 3), {"activations": ["LeakyRelu"], "activation_alpha": [0.2]}, []),
    ("RNN", (3, 2, 4, 3), {"activations": ["ThresholdedRelu"], "activation_alpha": [0.3]}, []),
    ("RNN", (3, 2, 4, 3), {"activations": ["Elu"], "activation_alpha": [0.9]}, []),
    ("RNN", (3, 2, 4, 3), {"activations": ["Softsign"]}, []),
    ("RNN", (3, 2, 4, 3), {"activations": ["Softplus"]}, []),
    ("GRU", (5, 3, 4, 7), {}, ["bias", "h"]),
    ("GRU", (5, 3, 4, 7), {"linear_before_reset": 1}, ["bias", "h"]),
    ("GRU", (5, 3, 4, 7), {"linear_before_reset": 1, "direction": "reverse"}, ["lengths"]),
    ("GRU", (5, 3, 4, 65), {"direction": "reverse"}, ["bias", "lengths", "h"]),
    (
        "GRU",
        (4, 2, 3, 6),
        {"activations": ["HardSigmoid", "Softsign"], "activation_alpha": [0.3], "activation_beta": [0.4], "clip": 0.5},
        ["bias"],
    ),
    ("LSTM", (5, 3, 4, 7), {}, ["bias", "h", "c", "peepholes"]),
    ("LSTM", (5, 3, 4, 7), {"direction": "reverse", "clip": 0.6}, ["bias", "lengths", "h", "c"]),
    ("LSTM", (5, 3, 4, 7), {"input_forget": 1}, ["bias", "lengths", "peepholes"]),
    ("LSTM", (4, 2, 3, 6), {"activations": ["Tanh", "Relu", "Softsign"]}, ["bias"]),
]


def run(op, values, attributes, outputs):
    order = ["x", "w", "r", "bias", "lengths", "h", "c", "peepholes"]
    inputs = [name if name in values else "" for name in order[: 8 if op == "LSTM" else 6]]
    node = helper.make_node(op, inputs, outputs, **attributes)
    kinds = {name: TensorProto.INT32 if name == "lengths" else TensorProto.FLOAT for name in order}
    given = [helper.make_tensor_value_info(n, kinds[n], v.shape) for n, v in values.items()]
    made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    graph = helper.make_graph([node], "recurrent", given, made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, values)


def main():
    random = np.random.default_rng(17)
    tensors = {}
    for i, (op, (steps, batch, inputs, hidden), attributes, given) in enumerate(CASES):
        gates = GATES[op]
        make = lambda *shape: random.uniform(-1, 1, shape).astype(np.float32)
        values = {
            "x": make(steps, batch, inputs),
            "w": make(1, gates * hidden, inputs),
            "r": make(1, gates * hidden, hidden),
            "bias": make(1, 2 * gates * hidden),
            "lengths": random.integers(1, steps + 1, batch).astype(np.int32),
            "h": make(1, batch, hidden),
            "c": make(1, batch, hidden),
            "peepholes": make(1, 3 * hidden),
        }
        values = {name: v for name, v in values.items() if name in ["x", "w", "r", *given]}
        outputs = ["y", "y_h", "y_c"][: 3 if op == "LSTM" else 2]
        results = run(op, values, attributes | {"hidden_size": hidden}, outputs)
        # Without the axis of directions, which has one element.
        values = {name: v if name in ["x", "lengths"] else v[0] for name, v in values.items()}
        values |= {name: v[:, 0] if name == "y" else v[0] for name, v in zip(outputs, results)}
        tensors |= {f"{i}/{name}": np.ascontiguousarray(v) for name, v in values.items()}
    path = sources.ROOT / "tests" / "data" / "recurrent.safetensors"
    save_file(tensors, path, metadata={"cases": json.dumps([{"op": case[0], **case[2]} for case in CASES])})


if __name__ == "__main__":
    main()
