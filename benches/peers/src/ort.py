"""onnxruntime on the CPU, driven by lines of JSON: builds a graph, runs it, hands its result back. See ort.rs."""

import json
import sys
import time

import numpy
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

SETS = 4


def load(request):
    inputs, weights, feeds = [], [], {}
    for array in request["inputs"]:
        values = numpy.fromfile(array["file"], dtype="<f4").reshape(array["shape"])
        if array["shared"]:
            weights.append(numpy_helper.from_array(values, array["name"]))
        else:
            inputs.append(helper.make_tensor_value_info(array["name"], TensorProto.FLOAT, array["shape"]))
            feeds[array["name"]] = values
    # Integer operands such as shapes and axes.
    for name, values in request["integers"].items():
        weights.append(numpy_helper.from_array(numpy.array(values, dtype=numpy.int64), name))
    nodes = [helper.make_node(n["op"], n["inputs"], [n["output"]], **n["attributes"]) for n in request["nodes"]]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "work", inputs, [output], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = request["threads"]
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    copies = [{name: values.copy() for name, values in feeds.items()} for _ in range(SETS)]
    return session, copies


def main():
    session, copies, result = None, None, None
    for line in sys.stdin:
        request = json.loads(line)
        answer = {}
        try:
            if request["do"] == "load":
                session, copies = load(request)
            elif request["do"] == "run":
                start = time.perf_counter()
                for i in range(request["repetitions"]):
                    result = session.run(None, copies[i % SETS])[0]
                answer["seconds"] = time.perf_counter() - start
            elif request["do"] == "result":
                numpy.ascontiguousarray(result, dtype="<f4").tofile(request["file"])
        except Exception as error:  # The other side reports it.
            answer["error"] = str(error)
        print(json.dumps(answer), flush=True)


print(json.dumps({"version": onnxruntime.__version__}), flush=True)
main()
