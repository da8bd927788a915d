"""Writes tests/data/sampling.safetensors: the outputs of onnxruntime for GridSample, RoiAlign, MaxRoiPool and DeformConv."""

import json

import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from safetensors.numpy import save_file

import sources

GRIDS = [
    {"mode": mode, "padding_mode": padding, "align_corners": align}
    for mode in ["nearest", "linear", "cubic"]
    for padding in ["zeros", "border", "reflection"]
    for align in [0, 1]
]
REGIONS = [
    {"mode": mode, "coordinate_transformation_mode": pixel, "sampling_ratio": samples, "spatial_scale": 0.5}
    for mode in ["avg", "max"]
    for pixel in ["half_pixel", "output_half_pixel"]
    for samples in [0, 2]
]
DEFORMED = [
    {"pads": [1, 1, 1, 1], "strides": [1, 1], "dilations": [1, 1], "group": 1, "offset_group": 1},
    {"pads": [0, 1, 2, 1], "strides": [2, 1], "dilations": [1, 2], "group": 2, "offset_group": 2},
]


def run(op, opset, values, attributes):
    kinds = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int64): TensorProto.INT64}
    node = helper.make_node(op, [name if values[name] is not None else "" for name in values], ["y"], **attributes)
    values = {name: value for name, value in values.items() if value is not None}
    given = [helper.make_tensor_value_info(n, kinds[v.dtype], v.shape) for n, v in values.items()]
    graph = helper.make_graph([node], op, given, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return values | {"y": session.run(None, values)[0]}


def cases(random):
    make = lambda *shape: random.uniform(-1, 1, shape).astype(np.float32)
    for attributes in GRIDS:
        grid = (make(2, 5, 6, 2) * 1.7).astype(np.float32)
        yield "GridSample", run("GridSample", 20, {"x": make(2, 3, 4, 7), "grid": grid}, attributes), attributes
        if attributes["mode"] != "cubic":
            grid = (make(1, 2, 3, 4, 3) * 1.7).astype(np.float32)
            yield "GridSample", run("GridSample", 20, {"x": make(1, 2, 3, 4, 5), "grid": grid}, attributes), attributes
    for attributes in REGIONS:
        corner = random.uniform(-3, 12, (6, 2)).astype(np.float32)
        regions = np.concatenate([corner, corner + random.uniform(0, 20, (6, 2)).astype(np.float32)], 1)
        pictures = random.integers(0, 2, 6)
        attributes = attributes | {"output_height": 3, "output_width": 4}
        yield "RoiAlign", run("RoiAlign", 16, {"x": make(2, 3, 9, 11), "regions": regions, "pictures": pictures}, attributes), attributes
    regions = np.floor(random.uniform(0, 9, (5, 5)))
    regions[:, 3:] = regions[:, 1:3] + np.floor(random.uniform(0, 12, (5, 2)))
    regions[:, 0] = [0, 1, 0, 1, 1]
    attributes = {"pooled_shape": [2, 3], "spatial_scale": 0.7}
    yield "MaxRoiPool", run("MaxRoiPool", 1, {"x": make(2, 3, 9, 11), "regions": regions.astype(np.float32)}, attributes), attributes
    for attributes in DEFORMED:
        groups, offset_groups = attributes["group"], attributes["offset_group"]
        (top, left, bottom, right), (sh, sw), (dh, dw) = attributes["pads"], attributes["strides"], attributes["dilations"]
        oh, ow = (7 + top + bottom - 2 * dh - 1) // sh + 1, (8 + left + right - dw - 1) // sw + 1
        taps = offset_groups * 3 * 2
        values = {
            "x": make(2, 4, 7, 8),
            "weight": make(6, 4 // groups, 3, 2),
            "offset": (make(2, taps * 2, oh, ow) * 2).astype(np.float32),
            "bias": make(6),
            "mask": make(2, taps, oh, ow),
        }
        yield "DeformConv", run("DeformConv", 22, values, attributes), attributes


def main():
    tensors, names = {}, []
    for i, (op, values, attributes) in enumerate(cases(np.random.default_rng(23))):
        values = {n: v.astype(np.int32) if v.dtype == np.int64 else v for n, v in values.items()}
        tensors |= {f"{i}/{name}": np.ascontiguousarray(v) for name, v in values.items()}
        names.append({"op": op, **attributes})
    save_file(tensors, sources.ROOT / "tests" / "data" / "sampling.safetensors", metadata={"cases": json.dumps(names)})


if __name__ == "__main__":
    main()
