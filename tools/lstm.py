"""Writes tests/data/lstm.safetensors: the outputs of onnxruntime for LSTM layers with random weights."""

import json

import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from safetensors.numpy import save_file

import sources

# Steps, batch, input, hidden, direction, and whether there are a bias and first states.
CASES = [
    (1, 1, 1, 1, "forward", False, False),
    (5, 3, 4, 7, "forward", True, True),
    (5, 3, 4, 7, "reverse", True, True),
    (9, 1, 16, 20, "reverse", False, True),
    (12, 2, 10, 70, "forward", True, False),
]


def run(values, direction, hidden):
    names = ["x", "w", "r", "bias", "", "h", "c"]
    inputs = [name if name in values else "" for name in names]
    node = helper.make_node("LSTM", inputs, ["y", "y_h", "y_c"], hidden_size=hidden, direction=direction)
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, v.shape) for n, v in values.items()]
    made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ["y", "y_h", "y_c"]]
    graph = helper.make_graph([node], "lstm", given, made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, values)


def main():
    random = np.random.default_rng(15)
    tensors, cases = {}, []
    for i, (steps, batch, inputs, hidden, direction, bias, first) in enumerate(CASES):
        make = lambda *shape: random.uniform(-1, 1, shape).astype(np.float32)
        values = {"x": make(steps, batch, inputs), "w": make(1, 4 * hidden, inputs), "r": make(1, 4 * hidden, hidden)}
        if bias:
            values["bias"] = make(1, 8 * hidden)
        if first:
            values |= {"h": make(1, batch, hidden), "c": make(1, batch, hidden)}
        y, y_h, y_c = run(values, direction, hidden)
        # Without the axis of directions, which has one element.
        values = {name: v[0] if name != "x" else v for name, v in values.items()}
        values |= {"y": y[:, 0], "y_h": y_h[0], "y_c": y_c[0]}
        tensors |= {f"{i}/{name}": np.ascontiguousarray(v) for name, v in values.items()}
        cases.append(direction)
    path = sources.ROOT / "tests" / "data" / "lstm.safetensors"
    save_file(tensors, path, metadata={"directions": json.dumps(cases)})


if __name__ == "__main__":
    main()
