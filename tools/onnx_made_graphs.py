"""Whole graphs for `onnx_made.py`, with the traps of real files."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from onnx_sweep_cases import f32, i32, i64, ints, values

node = helper.make_node


def info(name, kind=TensorProto.FLOAT, shape=None):
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name, array):
    return node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(array)))


def graphs(sweep):
    def case(name, nodes, inputs, outputs, opset=17, constants=()):
        # The reference hands the first value of a loop to every iteration.
        judge = "onnxruntime" if name in ("loop_until", "loop_grow") else "either"
        sweep.case(f"graph_{name}", nodes, inputs, outputs, {"": opset}, constants, judge)

    x = values([2, 3, 4], f32)
    scalar = lambda v, t=f32: np.array(v, t)
    # Names with colons, slashes, spaces, or only digits.
    case("names", [node("Relu", ["in:0"], ["a/b c"]), node("Neg", ["a/b c"], ["17"])], {"in:0": x}, ["17"])
    # A constant as an output, and an input as an output.
    case("constant_output", [constant("c", ints(3, 5)), node("Relu", ["x"], ["y"])], {"x": x}, ["c", "y"])
    case("input_output", [node("Identity", ["x"], ["y"])], {"x": x}, ["y"])
    case("f64", [node("Cast", ["x"], ["y"], to=TensorProto.DOUBLE)], {"x": x}, ["y"])
    case("u8", [node("Cast", ["x"], ["a"], to=1), node("Mul", ["a", "half"], ["b"]), node("Cast", ["b"], ["y"], to=2)], {"x": values([2, 3], np.uint8, 0, 255), "half": scalar(0.5)}, ["y"], constants=("half",))
    # A cache that is empty at first.
    case("empty_cache", [node("Concat", ["past", "k"], ["all"], axis=2), node("MatMul", ["q", "all_t"], ["s"]), node("Transpose", ["all"], ["all_t"], perm=[0, 1, 3, 2]), node("Softmax", ["s"], ["y"])],
         {"past": values([1, 2, 0, 4]), "k": values([1, 2, 3, 4]), "q": values([1, 2, 3, 4], seed=1)}, ["y", "all"])
    # If: constant, of a shape, of a computed value, nested, reading outer values.
    then = helper.make_graph([node("Add", ["x", "x"], ["t"])], "then", [], [info("t")])
    other = helper.make_graph([node("Mul", ["x", "x"], ["e"])], "else", [], [info("e")])
    case("if_input", [node("If", ["c"], ["y"], then_branch=then, else_branch=other)], {"c": scalar(True, np.bool_), "x": x}, ["y"])
    case("if_shape", [node("Shape", ["x"], ["s"]), node("Gather", ["s", "i"], ["n"]), node("Equal", ["n", "three"], ["c"]), node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
         {"x": x, "i": scalar(1, i64), "three": scalar(3, i64)}, ["y"], constants=("i", "three"))
    case("if_computed", [node("ReduceSum", ["x"], ["s"], keepdims=0), node("Greater", ["s", "zero"], ["c"]), node("If", ["c"], ["y"], then_branch=then, else_branch=other)], {"x": x, "zero": scalar(0)}, ["y"], constants=("zero",))
    inner = helper.make_graph([node("If", ["d"], ["z"], then_branch=then, else_branch=other)], "inner", [], [info("z")])
    flat = helper.make_graph([node("Identity", ["x"], ["w"])], "flat", [], [info("w")])
    for c in (False, True):
        for d in (False, True):
            case(f"if_nested_{int(c)}{int(d)}", [node("If", ["c"], ["y"], then_branch=inner, else_branch=flat)], {"c": scalar(c, np.bool_), "d": scalar(d, np.bool_), "x": x}, ["y"])
    # Loop: scan outputs, a computed end, an empty optional count, captured values.
    body = helper.make_graph([node("Add", ["a", "x"], ["b"]), node("Identity", ["go"], ["on"]), node("Identity", ["b"], ["out"])], "body", [info("n", 7, []), info("go", 9, []), info("a")], [info("on", 9, []), info("b"), info("out", 1, [2, 3, 4])])
    case("loop", [node("Loop", ["n", "", "x"], ["y", "all"], body=body)], {"n": scalar(3, i64), "x": x}, ["y", "all"])
    case("loop_none", [node("Loop", ["n", "", "x"], ["y", "all"], body=body)], {"n": scalar(0, i64), "x": x}, ["y", "all"])
    until = helper.make_graph([node("Mul", ["a", "two"], ["b"]), node("ReduceMax", ["b"], ["m"], keepdims=0), node("Less", ["m", "limit"], ["on"]), node("Identity", ["m"], ["out"])], "until", [info("n", 7, []), info("go", 9, []), info("a")], [info("on", 9, []), info("b"), info("out", 1, [])])
    case("loop_until", [node("Loop", ["", "go", "x"], ["y", "all"], body=until)], {"go": scalar(True, np.bool_), "x": np.abs(x), "two": scalar(2), "limit": scalar(100)}, ["y", "all"], constants=("two", "limit"))
    grow = helper.make_graph([node("Unsqueeze", ["n", "zero"], ["r0"]), node("Cast", ["r0"], ["r"], to=1), node("Concat", ["a", "r"], ["b"], axis=0), node("Identity", ["go"], ["on"])], "grow", [info("n", 7, []), info("go", 9, []), info("a")], [info("on", 9, []), info("b")])
    case("loop_grow", [node("Loop", ["n", "", "x"], ["y"], body=grow)], {"n": scalar(4, i64), "x": values([1]), "zero": ints(0)}, ["y"], constants=("zero",))
    step = helper.make_graph([node("Add", ["h", "e"], ["g"]), node("Tanh", ["g"], ["o"])], "step", [info("h"), info("e")], [info("g"), info("o")])
    case("scan", [node("Scan", ["h", "x"], ["last", "all"], body=step, num_scan_inputs=1)], {"h": values([3, 4]), "x": x}, ["last", "all"])
    case("scan_back", [node("Scan", ["h", "x"], ["last", "all"], body=step, num_scan_inputs=1, scan_input_axes=[1], scan_input_directions=[1], scan_output_axes=[2], scan_output_directions=[1])], {"h": values([2, 4]), "x": x}, ["last", "all"])
    # What only the data know.
    case("non_zero_gather", [node("Greater", ["x", "zero"], ["m"]), node("NonZero", ["m"], ["p"]), node("Transpose", ["p"], ["i"]), node("GatherND", ["x", "i"], ["v"]), node("Mul", ["v", "v"], ["y"])], {"x": x, "zero": scalar(0)}, ["y", "i"], constants=("zero",))
    case("non_zero_none", [node("Greater", ["x", "big"], ["m"]), node("NonZero", ["m"], ["p"]), node("Transpose", ["p"], ["i"]), node("GatherND", ["x", "i"], ["v"])], {"x": x, "big": scalar(100)}, ["v"], constants=("big",))
    case("detect", [node("Relu", ["b"], ["b1"]), node("Sigmoid", ["s"], ["s1"]), node("NonMaxSuppression", ["b1", "s1", "n", "t", "l"], ["k"]), node("Gather", ["k", "two"], ["i"], axis=1), node("Squeeze", ["i", "one"], ["j"]), node("Gather", ["b1", "j"], ["y"], axis=1)],
         {"b": values([1, 8, 4], f32, 0, 1), "s": values([1, 1, 8]), "n": ints(4), "t": np.array([0.4], f32), "l": np.array([0.5], f32), "two": ints(2), "one": ints(1)}, ["y"], constants=("n", "t", "l", "two", "one"))
    case("computed_reshape", [node("ReduceMax", ["x"], ["m"], keepdims=0), node("Cast", ["m"], ["n0"], to=7), node("Mul", ["n0", "zero"], ["n1"]), node("Add", ["n1", "shape"], ["n"]), node("Reshape", ["x", "n"], ["y"])], {"x": x, "zero": scalar(0, i64), "shape": ints(4, 6)}, ["y"], constants=("zero", "shape"))
    case("computed_range", [node("ReduceMax", ["k"], ["n"], keepdims=0), node("Range", ["zero", "n", "one"], ["y"])], {"k": values([3], f32, 3, 6), "zero": scalar(0), "one": scalar(1)}, ["y"], constants=("zero", "one"))
    case("computed_top_k", [node("Shape", ["x"], ["s"]), node("Gather", ["s", "i"], ["n"]), node("Min", ["n", "k"], ["m"]), node("TopK", ["x", "m"], ["v", "p"])], {"x": x, "i": ints(2), "k": ints(3)}, ["v", "p"], constants=("i", "k"))
    # Random numbers that do not matter.
    case("noise_0", [node("RandomNormalLike", ["x"], ["r"], scale=1.0, seed=1.0), node("Mul", ["r", "zero"], ["z"]), node("Add", ["x", "z"], ["y"])], {"x": x, "zero": scalar(0)}, ["y"], constants=("zero",))
    # Old versions, as attributes.
    case("old_slice", [node("Slice", ["x"], ["y"], starts=[0, 1], ends=[2, 3], axes=[0, 2])], {"x": x}, ["y"], 9)
    case("old_pad", [node("Pad", ["x"], ["y"], pads=[0, 0, 1, 0, 0, 2], mode="reflect")], {"x": x}, ["y"], 9)
    case("old_clip", [node("Clip", ["x"], ["y"], min=-1.0, max=1.0)], {"x": x}, ["y"], 9)
    case("old_upsample", [constant("s", np.array([1, 1, 2, 2], f32)), node("Upsample", ["x", "s"], ["y"], mode="linear")], {"x": values([1, 2, 3, 4])}, ["y"], 9)
    case("old_dropout", [node("Dropout", ["x"], ["y"], ratio=0.5)], {"x": x}, ["y"], 7)
    case("old_unsqueeze", [node("Unsqueeze", ["x"], ["a"], axes=[0, 4]), node("Squeeze", ["a"], ["y"], axes=[0])], {"x": x}, ["y"], 9)
    # Patterns that exporters write: each must give what its parts give.
    w, b = values([8], seed=1), values([8], seed=2)
    t = values([2, 5, 8], f32, -2, 2)
    c = {"w": w, "b": b, "two": scalar(2), "eps": scalar(1e-5), "half": scalar(0.5), "one": scalar(1), "root": scalar(1.4142135), "k": scalar(0.044715), "pi": scalar(0.7978846), "three": scalar(3)}
    norm = [node("ReduceMean", ["x"], ["m"], axes=[-1]), node("Sub", ["x", "m"], ["d"]), node("Pow", ["d", "two"], ["p"]), node("ReduceMean", ["p"], ["v"], axes=[-1]), node("Add", ["v", "eps"], ["v1"]), node("Sqrt", ["v1"], ["s"]), node("Div", ["d", "s"], ["n"]), node("Mul", ["n", "w"], ["n1"]), node("Add", ["n1", "b"], ["y"])]
    use = lambda *keys: {key: c[key] for key in keys}
    case("layer_norm", norm, {"x": t, **use("w", "b", "two", "eps")}, ["y"], constants=("w", "b", "two", "eps"))
    case("layer_norm_used", norm, {"x": t, **use("w", "b", "two", "eps")}, ["y", "d"], constants=("w", "b", "two", "eps"))
    case("layer_norm_plain", [*norm[:6], node("Div", ["d", "s"], ["y"])], {"x": t, **use("two", "eps")}, ["y"], constants=("two", "eps"))
    case("layer_norm_mul", [*norm[:2], node("Mul", ["d", "d"], ["p"]), *norm[3:]], {"x": t, **use("w", "b", "eps")}, ["y"], constants=("w", "b", "eps"))
    case("layer_norm_axes_input", [node("ReduceMean", ["x", "last"], ["m"]), *norm[1:3], node("ReduceMean", ["p", "last"], ["v"]), *norm[4:]], {"x": t, **use("w", "b", "two", "eps"), "last": ints(-1)}, ["y"], 18, ("w", "b", "two", "eps", "last"))
    case("layer_norm_other_axis", [node("ReduceMean", ["x"], ["m"], axes=[1]), *norm[1:3], node("ReduceMean", ["p"], ["v"], axes=[1]), *norm[4:]], {"x": t, **use("w", "b", "two", "eps")}, ["y"], constants=("w", "b", "two", "eps"))
    rms = [node("Pow", ["x", "two"], ["p"]), node("ReduceMean", ["p"], ["v"], axes=[-1]), node("Add", ["v", "eps"], ["v1"]), node("Sqrt", ["v1"], ["s"]), node("Reciprocal", ["s"], ["r"]), node("Mul", ["x", "r"], ["n"]), node("Mul", ["w", "n"], ["y"])]
    case("rms_norm", rms, {"x": t, **use("w", "two", "eps")}, ["y"], constants=("w", "two", "eps"))
    case("rms_norm_div", [*rms[:4], node("Div", ["x", "s"], ["n"]), node("Mul", ["n", "w"], ["y"])], {"x": t, **use("w", "two", "eps")}, ["y"], constants=("w", "two", "eps"))
    case("gelu_erf", [node("Div", ["x", "root"], ["a"]), node("Erf", ["a"], ["e"]), node("Add", ["e", "one"], ["f"]), node("Mul", ["x", "f"], ["g"]), node("Mul", ["g", "half"], ["y"])], {"x": t, **use("root", "one", "half")}, ["y"], constants=("root", "one", "half"))
    case("gelu_tanh", [node("Pow", ["x", "three"], ["a"]), node("Mul", ["a", "k"], ["e"]), node("Add", ["x", "e"], ["f"]), node("Mul", ["f", "pi"], ["g"]), node("Tanh", ["g"], ["h"]), node("Add", ["h", "one"], ["i"]), node("Mul", ["x", "half"], ["j"]), node("Mul", ["j", "i"], ["y"])], {"x": t, **use("three", "k", "pi", "one", "half")}, ["y"], constants=("three", "k", "pi", "one", "half"))
    q, k, v = values([2, 2, 5, 4]), values([2, 2, 6, 4], seed=1), values([2, 2, 6, 4], seed=2)
    att = [node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]), node("MatMul", ["q", "kt"], ["s"]), node("Mul", ["s", "half"], ["s1"]), node("Add", ["s1", "mask"], ["s2"]), node("Softmax", ["s2"], ["p"], axis=-1), node("MatMul", ["p", "v"], ["y"])]
    mask = values([2, 1, 5, 6], f32, -3, 1)
    case("attention", att, {"q": q, "k": k, "v": v, "mask": mask, **use("half")}, ["y"], constants=("half",))
    case("attention_used", att, {"q": q, "k": k, "v": v, "mask": mask, **use("half")}, ["y", "p"], constants=("half",))
    case("attention_no_mask", [*att[:2], node("Div", ["s", "two"], ["s1"]), node("Softmax", ["s1"], ["p"], axis=-1), att[5]], {"q": q, "k": k, "v": v, **use("two")}, ["y"], constants=("two",))
    case("attention_plain", [*att[:2], node("Softmax", ["s"], ["p"], axis=-1), att[5]], {"q": q, "k": k, "v": v}, ["y"])
    bn = {"g": values([4], f32, 0.5, 2, 1), "h": values([4], seed=2), "m": values([4], seed=3), "s": values([4], f32, 0.5, 2, 4)}
    for label, weight, attributes, bias in (("bias", [4, 3, 3, 3], {}, True), ("plain", [4, 3, 3, 3], {"strides": [2, 2]}, False), ("depthwise", [4, 1, 3, 3], {"group": 4}, True)):
        pic = values([1, 4 if attributes.get("group") else 3, 6, 7])
        extra = {"c": values([4], seed=9)} if bias else {}
        case(f"conv_batch_norm_{label}", [node("Conv", ["x", "w", *extra], ["a"], **attributes), node("BatchNormalization", ["a", "g", "h", "m", "s"], ["n"], epsilon=1e-3), node("Relu", ["n"], ["y"])], {"x": pic, "w": values(weight, f32, -1, 1), **extra, **bn}, ["y"], constants=("w", *extra, *bn))
    case("conv_batch_norm_used", [node("Conv", ["x", "w"], ["a"]), node("BatchNormalization", ["a", "g", "h", "m", "s"], ["y"])], {"x": values([1, 3, 6, 7]), "w": values([4, 3, 3, 3], f32, -1, 1), **bn}, ["y", "a"], constants=("w", *bn))
    case("conv_transpose_batch_norm", [node("ConvTranspose", ["x", "w"], ["a"], strides=[2, 2], group=2), node("BatchNormalization", ["a", "g", "h", "m", "s"], ["y"])], {"x": values([1, 4, 3, 3]), "w": values([4, 2, 3, 3], f32, -1, 1), **bn}, ["y"], constants=("w", *bn))
    long = [node("Add", ["x" if i == 0 else f"v{i}", "one"], [f"v{i + 1}"]) for i in range(400)]
    case("long", long, {"x": values([3]), **use("one")}, ["v400"], constants=("one",))
