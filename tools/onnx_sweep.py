"""Makes cases in the layout of the ONNX backend tests for every operator, version, element type and attribute.

    python tools/onnx_sweep.py FOLDER [OPERATOR…]
    ONNX_CASES=FOLDER cargo test --test onnx_vectors -- case::

The expected outputs are those of `onnx.reference`. Where onnxruntime runs the model too, both must agree, or the case is left
out and listed: the two are the only judges. Combinations that the reference itself cannot run are counted. Packages:
onnx 1.22, onnxruntime, numpy, ml_dtypes.
"""

import os
import shutil
import sys
import warnings

import numpy as np
import onnx
import onnx.reference
from onnx import TensorProto, helper, numpy_helper

import onnx_sweep_cases as cases

warnings.filterwarnings("ignore")

TYPES = {
    "tensor(float16)": TensorProto.FLOAT16,
    "tensor(bfloat16)": TensorProto.BFLOAT16,
    "tensor(float)": TensorProto.FLOAT,
    "tensor(double)": TensorProto.DOUBLE,
    "tensor(int8)": TensorProto.INT8,
    "tensor(int16)": TensorProto.INT16,
    "tensor(int32)": TensorProto.INT32,
    "tensor(int64)": TensorProto.INT64,
    "tensor(uint8)": TensorProto.UINT8,
    "tensor(uint16)": TensorProto.UINT16,
    "tensor(uint32)": TensorProto.UINT32,
    "tensor(uint64)": TensorProto.UINT64,
    "tensor(bool)": TensorProto.BOOL,
    "tensor(string)": TensorProto.STRING,
}

try:
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
except ImportError:
    onnxruntime = None


def proto_type(array):
    if array.dtype.kind in "OUS":
        return TensorProto.STRING
    return helper.np_dtype_to_tensor_dtype(array.dtype)


def info(name, array):
    if isinstance(array, list):
        first = array[0] if array else np.zeros(0, np.float32)
        return helper.make_tensor_sequence_value_info(name, proto_type(first), None)
    return helper.make_tensor_value_info(name, proto_type(array), array.shape)


def save(array, path):
    if isinstance(array, list):
        proto = numpy_helper.from_list(array)
    else:
        proto = numpy_helper.from_array(np.asarray(array))
    with open(path, "wb") as file:
        file.write(proto.SerializeToString())


def same(a, b):
    """Whether two judges agree, within what their float types allow."""
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        return False
    if a.dtype.kind in "OUS" or b.dtype.kind in "OUS":
        return [str(v) for v in a.ravel()] == [str(v) for v in b.ravel()]
    if a.dtype.kind in "iub":
        return np.array_equal(a, b)
    loose = 1e-2 if a.dtype.itemsize < 4 else 1e-3
    return np.allclose(a.astype(np.float64), b.astype(np.float64), loose, 1e-5, equal_nan=True)


def run_reference(model, feeds):
    return onnx.reference.ReferenceEvaluator(model).run(None, feeds)


def run_onnxruntime(model, feeds):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


class Sweep:
    def __init__(self, folder):
        self.folder = folder
        self.written = 0
        self.refused = {}
        self.disputed = []

    def case(self, name, nodes, inputs, outputs, opset, constants=(), judge="reference"):
        """Writes a case. `constants` are the inputs that become initialisers."""
        feeds = {key: value for key, value in inputs.items() if key not in constants}
        stored = [numpy_helper.from_array(inputs[key], key) for key in constants]
        opsets = [helper.make_opsetid(domain, version) for domain, version in opset.items()]
        graph = helper.make_graph(
            nodes, name, [info(k, v) for k, v in feeds.items()],
            [helper.make_empty_tensor_value_info(key) for key in outputs], stored,
        )
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        answers = {}
        for key, run in (("reference", run_reference), ("onnxruntime", run_onnxruntime)):
            if key == "onnxruntime" and onnxruntime is None or key == "reference" and judge == "onnxruntime":
                continue
            try:
                typed = model
                if key == "onnxruntime" and "reference" in answers:
                    typed = onnx.ModelProto()
                    typed.CopyFrom(model)
                    del typed.graph.output[:]
                    typed.graph.output.extend(info(k, v) for k, v in zip(outputs, answers["reference"]))
                answers[key] = run(typed, feeds)
            except Exception as error:
                if key == judge:
                    self.refused[name] = str(error).splitlines()[0][:120] if str(error) else repr(error)
        if judge == "either":
            judge = next(iter(answers), judge)
        if judge not in answers:
            self.refused.setdefault(name, "neither runs it")
            return
        expected = answers[judge]
        if len(answers) == 2 and not same(*answers.values()):
            self.disputed.append(name)
            return
        del model.graph.output[:]
        model.graph.output.extend(info(k, v) for k, v in zip(outputs, expected))
        try:
            [numpy_helper.from_array(np.asarray(v)) for v in expected if not isinstance(v, list)]
        except Exception as error:
            self.refused[name] = repr(error)
            return
        folder = os.path.join(self.folder, name)
        data = os.path.join(folder, "test_data_set_0")
        os.makedirs(data, exist_ok=True)
        onnx.save(model, os.path.join(folder, "model.onnx"))
        for i, value in enumerate(feeds.values()):
            save(value, os.path.join(data, f"input_{i}.pb"))
        for i, value in enumerate(expected):
            save(value, os.path.join(data, f"output_{i}.pb"))
        self.written += 1

    def operator(self, schema, variant):
        """All element types of one version of an operator, for one variant."""
        label, make = variant
        types = ["tensor(float)"]
        for constraint in schema.type_constraints:
            if constraint.type_param_str in ("T", "T1", "TensorType"):
                types = [t for t in constraint.allowed_type_strs if t in TYPES]
                break
        for kind in types:
            dtype = np.dtype(object) if kind == "tensor(string)" else helper.tensor_dtype_to_np_dtype(TYPES[kind])
            try:
                made = make(dtype, schema.since_version)
            except (TypeError, ValueError, OverflowError):  # The type does not have such numbers.
                made = None
            if made is None:
                continue
            inputs, attributes, *rest = made
            outputs = rest[0] if rest else 1
            constants = rest[1] if len(rest) > 1 else ()
            names = [f"x{i}" if value is not None else "" for i, value in enumerate(inputs)]
            out = [f"y{i}" for i in range(outputs)]
            node = helper.make_node(schema.name, names, out, **attributes)
            short = kind[7:-1]
            name = f"{schema.name}_v{schema.since_version}_{label}_{short}"
            feeds = {n: v for n, v in zip(names, inputs) if v is not None}
            self.case(name, [node], feeds, out, {"": schema.since_version}, [f"x{i}" for i in constants])


def main():
    folder, only = sys.argv[1], set(sys.argv[2:])
    shutil.rmtree(folder, ignore_errors=True)
    sweep = Sweep(folder)
    schemas = [s for s in onnx.defs.get_all_schemas_with_history() if s.domain == "" and s.since_version <= 27]
    missing = set()
    for schema in sorted(schemas, key=lambda s: (s.name, s.since_version)):
        if only and schema.name not in only:
            continue
        variants = cases.VARIANTS.get(schema.name)
        if variants is None:
            missing.add(schema.name)
            continue
        for variant in variants:
            sweep.operator(schema, variant)
    print(f"{sweep.written} cases, {len(sweep.refused)} that the reference does not run, {len(sweep.disputed)} disputed")
    print("disputed:", *sweep.disputed)
    print("without variants:", *sorted(missing))
    if os.environ.get("SWEEP_REFUSED"):
        for name, reason in sweep.refused.items():
            print(" ", name, reason)


if __name__ == "__main__":
    main()
