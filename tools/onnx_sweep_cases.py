"""The variants of `onnx_sweep.py`: for each operator, functions from an element type and a version to inputs and attributes.

A variant returns `(inputs, attributes)`, then the number of outputs and the inputs that are initialisers, if there are any.
It returns nothing where a version does not have it.
"""

import zlib

import numpy as np
from onnx import TensorProto, helper

f32, i64, i32 = np.float32, np.int64, np.int32
VARIANTS = {}


def values(shape, dtype=f32, low=-4.0, high=4.0, seed=0):
    """Numbers of a type. Integers are whole; unsigned ones begin at 0."""
    state = np.random.default_rng(zlib.crc32(repr((tuple(shape), low, high, seed)).encode()))
    dtype = np.dtype(dtype)
    if dtype == np.dtype(object):
        return np.array([f"s{n}" for n in state.integers(0, 5, int(np.prod(shape)))], dtype=object).reshape(shape)
    if dtype == np.bool_:
        return state.integers(0, 2, shape).astype(np.bool_)
    if dtype.kind == "u":
        return state.integers(max(int(low), 0), max(int(high), 1) + 1, shape).astype(dtype)
    if dtype.kind == "i":
        return state.integers(int(low), int(high) + 1, shape).astype(dtype)
    return (state.random(shape) * (high - low) + low).astype(dtype)


def add(names, label, make):
    for name in names.split():
        VARIANTS.setdefault(name, []).append((label, make))


def is_float(dtype):
    return dtype.kind == "f" or dtype.name == "bfloat16"


def ints(*numbers):
    return np.array(numbers, i64)


# Element by element, one input.
add("Abs Neg Sign Relu Floor Ceil Round Exp Sin Cos Tan Sinh Cosh Asinh Atan Erf Sigmoid Tanh Softplus Softsign Mish HardSwish "
    "LeakyRelu Elu Celu ThresholdedRelu HardSigmoid Selu Swish Shrink Gelu Not BitwiseNot Identity IsNaN IsInf",
    "plain", lambda t, v: ([values([3, 4, 5], t)], {}))
add("Abs Neg Relu Tanh Identity Sigmoid", "scalar", lambda t, v: ([values([], t)], {}))
add("Abs Neg Relu Tanh Identity Exp", "empty", lambda t, v: ([values([2, 0, 3], t)], {}))
add("Sqrt Log Reciprocal", "plain", lambda t, v: ([values([3, 4, 5], t, 0.5, 4)], {}))
add("Acosh", "plain", lambda t, v: ([values([3, 4], t, 1.1, 6)], {}))
add("Asin Acos Atanh", "plain", lambda t, v: ([values([3, 4], t, -0.9, 0.9)], {}))
add("LeakyRelu Elu Celu ThresholdedRelu Swish", "alpha", lambda t, v: ([values([3, 4, 5], t)], {"alpha": 0.3}))
add("HardSigmoid", "both", lambda t, v: ([values([3, 4, 5], t)], {"alpha": 0.5, "beta": 0.6}))
add("Selu", "both", lambda t, v: ([values([3, 4, 5], t)], {"alpha": 2.0, "gamma": 3.0}))
add("Shrink", "both", lambda t, v: ([values([3, 4, 5], t)], {"lambd": 1.5, "bias": 1.5}))
add("Gelu", "tanh", lambda t, v: ([values([3, 4, 5], t)], {"approximate": "tanh"}))


def special(t, v):
    if not is_float(t):
        return None
    return [np.array([1, -np.inf, np.inf, np.nan, 0, -0.0, 2.5, -2.5, 0.5, -0.5], t)], {}


add("Abs Neg Sign Relu Floor Ceil Round IsNaN IsInf Identity Sigmoid Tanh Exp Erf Softplus Elu LeakyRelu", "special", special)
add("IsInf", "negative", lambda t, v: ([special(t, v)[0][0]], {"detect_positive": 0}) if is_float(t) else None)
add("IsInf", "positive", lambda t, v: ([special(t, v)[0][0]], {"detect_negative": 0}) if is_float(t) else None)

# Element by element, two inputs.
PAIRS = "Add Sub Mul Div Pow Mod Equal Less LessOrEqual Greater GreaterOrEqual And Or Xor BitwiseAnd BitwiseOr BitwiseXor"


def pair(a, b, name=None):
    def make(t, v):
        low = 1 if t.kind in "iu" else 0.5
        if t.kind == "i" and t.itemsize > 1:
            x = values(a, t, -50, 50)
        else:
            x = values(a, t, 0 if t.kind in "iu" else -4, 9)
        return [x, values(b, t, low, 3, seed=1)], {}
    return make


for op in PAIRS.split():
    add(op, "same", lambda t, v, op=op: ([np.abs(pair([3, 4, 5], [3, 4, 5])(t, v)[0][0]) if op == "Pow" and t.kind not in "bOu"
                                          else pair([3, 4, 5], [3, 4, 5])(t, v)[0][0], pair([3, 4, 5], [3, 4, 5])(t, v)[0][1]],
                                         {"fmod": 1} if op == "Mod" and is_float(t) else {}))
    add(op, "broadcast", lambda t, v, op=op: None if v < 7 else (
        [np.abs(pair([3, 1, 5], [4, 1])(t, v)[0][0]) if op == "Pow" and t.kind not in "bOu" else pair([3, 1, 5], [4, 1])(t, v)[0][0],
         pair([3, 1, 5], [4, 1])(t, v)[0][1]], {"fmod": 1} if op == "Mod" and is_float(t) else {}))
    add(op, "scalar", lambda t, v, op=op: None if v < 7 else (
        [np.abs(pair([3], [])(t, v)[0][0]) if op == "Pow" and t.kind not in "bOu" else pair([3], [])(t, v)[0][0],
         pair([3], [])(t, v)[0][1]], {"fmod": 1} if op == "Mod" and is_float(t) else {}))
add("Add Sub Mul Div", "old_axis", lambda t, v: ([values([2, 3, 4, 5], t, 1, 4), values([3, 4], t, 1, 4, 1)], {"broadcast": 1, "axis": 1}) if v < 7 else None)
add("Add Sub Mul Div", "old_tail", lambda t, v: ([values([2, 3, 4, 5], t, 1, 4), values([5], t, 1, 4, 1)], {"broadcast": 1}) if v < 7 else None)
add("Mod", "fmod", lambda t, v: ([values([6], t, -9, 9), values([6], t, 1, 4, 1)], {"fmod": 1}))
add("Mod", "signs", lambda t, v: ([np.array([-7, 7, -7, 7, 6, -6], t), np.array([3, 3, -3, -3, 3, -3], t)], {}) if t.kind == "i" else None)
add("Div", "signs", lambda t, v: ([np.array([-7, 7, -7, 7, 6, -6], t), np.array([3, 3, -3, -3, 3, -3], t)], {}) if t.kind == "i" and v > 6 else None)
for kind in (np.float32, np.int32, np.int64, np.uint8, np.float64, np.float16, np.uint64, np.int8):
    add("Pow", f"exponent_{np.dtype(kind).name}", lambda t, v, kind=kind: ([values([2, 3], t, 1, 3), values([2, 3], kind, 0, 2, 1)], {}) if v >= 12 else None)
add("Add Mul Sub", "wraps", lambda t, v: ([np.array([np.iinfo(t).max, np.iinfo(t).max - 1, 5], t), np.array([1, 2, 3], t)], {}) if t.kind in "iu" and t.itemsize < 4 and v > 6 else None)
for direction in ("LEFT", "RIGHT"):
    add("BitShift", direction.lower(), lambda t, v, d=direction: ([np.array([[16, 4, 1], [255, 128, 3]], t), np.array([[1, 2, 3], [1, 1, 0]], t)], {"direction": d}))
    add("BitShift", direction.lower() + "_scalar", lambda t, v, d=direction: ([np.array([[16, 4, 1], [200, 128, 3]], t), np.array([2], t)], {"direction": d}))
add("PRelu", "same", lambda t, v: ([values([2, 3, 4], t), values([2, 3, 4], t, seed=1)], {}))
add("PRelu", "channels", lambda t, v: ([values([2, 3, 4], t), values([3, 1] if v >= 7 else [3], t, seed=1)], {}))
add("PRelu", "one", lambda t, v: ([values([2, 3, 4], t), values([1], t, seed=1)], {}))
add("Where", "plain", lambda t, v: ([values([3, 4], np.bool_), values([3, 4], t), values([3, 4], t, seed=1)], {}))
add("Where", "broadcast", lambda t, v: ([values([3, 1], np.bool_), values([4], t), values([2, 1, 1], t, seed=1)], {}))
for n in (1, 2, 3, 4):
    add("Max Min Sum Mean", f"of_{n}", lambda t, v, n=n: ([values([3, 4], t, seed=i) for i in range(n)], {}))
add("Max Min Sum Mean", "broadcast", lambda t, v: ([values([3, 4], t), values([4], t), values([2, 1, 1], t)], {}) if v >= 8 else None)
add("Max Min", "nan", lambda t, v: ([np.array([1, np.nan, 3], t), np.array([np.nan, 2, 1], t)], {}) if is_float(t) else None)

# Clip.
add("Clip", "both", lambda t, v: ([values([3, 4, 5], t), np.array(-1 if t.kind != "u" else 1, t), np.array(2, t)], {}) if v >= 11 else ([values([3, 4, 5], t)], {"min": -1.0, "max": 2.0}))
add("Clip", "low", lambda t, v: ([values([3, 4, 5], t), np.array(1, t)], {}) if v >= 11 else ([values([3, 4, 5], t)], {"min": 1.0}))
add("Clip", "high", lambda t, v: ([values([3, 4, 5], t), None, np.array(1, t)], {}) if v >= 11 else ([values([3, 4, 5], t)], {"max": 1.0}))
add("Clip", "none", lambda t, v: ([values([3, 4, 5], t)], {}))
add("Clip", "crossed", lambda t, v: ([values([3, 4, 5], t), np.array(2, t), np.array(1, t)], {}) if v >= 11 else None)
add("Clip", "constants", lambda t, v: ([values([3, 4, 5], t), np.array(1, t), np.array(2, t)], {}, 1, (1, 2)) if v >= 11 else None)

# Shapes.
add("Shape", "plain", lambda t, v: ([values([3, 4, 5], t)], {}))
add("Shape", "part", lambda t, v: ([values([3, 4, 5], t)], {"start": 1, "end": -1}) if v >= 15 else None)
add("Shape", "beyond", lambda t, v: ([values([3, 4, 5], t)], {"start": -10, "end": 10}) if v >= 15 else None)
add("Shape", "crossed", lambda t, v: ([values([3, 4, 5], t)], {"start": 2, "end": 1}) if v >= 15 else None)
add("Size", "plain", lambda t, v: ([values([3, 4, 5], t)], {}))
add("Size", "scalar", lambda t, v: ([values([], t)], {}))


def reshape(shape, to, **attributes):
    def make(t, v):
        if v < 14 and attributes or v < 5 and not to:
            return None
        return ([values(shape, t)], {"shape": to}) if v < 5 else ([values(shape, t), ints(*to)], attributes)
    return make


add("Reshape", "plain", reshape([2, 3, 4], [4, 6]))
add("Reshape", "open", reshape([2, 3, 4], [2, -1]))
add("Reshape", "kept", reshape([2, 3, 4], [0, -1, 2]))
add("Reshape", "empty", reshape([0, 3, 4], [3, 4, 0], allowzero=1))
add("Reshape", "scalar", reshape([1, 1], []))
add("Flatten", "default", lambda t, v: ([values([2, 3, 4, 5], t)], {}))
for axis in (0, 1, 2, 3, 4, -1, -3):
    add("Flatten", f"axis_{axis}", lambda t, v, a=axis: ([values([2, 3, 4, 5], t)], {"axis": a}) if a >= 0 or v >= 11 else None)
add("Transpose", "default", lambda t, v: ([values([2, 3, 4], t)], {}))
add("Transpose", "perm", lambda t, v: ([values([2, 3, 4], t)], {"perm": [1, 2, 0]}))


def axes_op(shape, axes):
    def make(t, v):
        if v < 11 and axes and min(axes) < 0:
            return None
        return ([values(shape, t)], {"axes": axes}) if v < 13 else ([values(shape, t), ints(*axes)], {})
    return make


add("Squeeze", "some", axes_op([1, 3, 1, 4], [0]))
add("Squeeze", "negative", axes_op([1, 3, 1, 4], [-2]))
add("Squeeze", "all", lambda t, v: ([values([1, 3, 1, 4], t)], {}))
add("Unsqueeze", "one", axes_op([3, 4], [0]))
add("Unsqueeze", "two", axes_op([3, 4], [1, 3]))
add("Unsqueeze", "unsorted", axes_op([3, 4], [3, 0, 2]))
add("Unsqueeze", "negative", axes_op([3, 4], [-2]))
add("Expand", "plain", lambda t, v: ([values([3, 1], t), ints(2, 1, 6)], {}))
add("Expand", "smaller", lambda t, v: ([values([3, 1], t), ints(3, 4)], {}))
add("Expand", "ones", lambda t, v: ([values([3, 4], t), ints(1, 1)], {}))
add("Expand", "empty", lambda t, v: ([values([3, 1], t), ints(3, 0)], {}))


def slices(shape, starts, ends, axes=None, steps=None, index=i64):
    def make(t, v):
        if v < 10:
            if steps:
                return None
            return [values(shape, t)], {"starts": starts, "ends": ends, **({"axes": axes} if axes else {})}
        rest = [np.array(starts, index), np.array(ends, index)]
        if axes or steps:
            rest.append(np.array(axes, index) if axes else None)
        if steps:
            rest.append(np.array(steps, index))
        return [values(shape, t), *rest], {}
    return make


add("Slice", "plain", slices([6, 5, 4], [0, 1], [3, 4]))
add("Slice", "axes", slices([6, 5, 4], [1, -3], [4, 1000], [0, 2]))
add("Slice", "steps", slices([6, 5, 4], [0, 4], [6, -9], [0, 1], [2, -1]))
add("Slice", "nothing", slices([6, 5, 4], [5], [2], [0]))
add("Slice", "beyond", slices([6, 5, 4], [1000], [1000], [1]))
add("Slice", "int32", slices([6, 5, 4], [1], [3], [1], [1], i32))
add("Slice", "no_axes", slices([6, 5, 4], [0, 1, 0], [3, 4, 4], None, [1, 1, 2]))
add("Slice", "negative_axes", slices([6, 5, 4], [0, 1], [3, 4], [-1, -2], [1, 1]))
add("Slice", "reverse_all", slices([6, 5], [-1], [-(1 << 62)], [0], [-1]))


def split(shape, parts, axis=0, count=None):
    def make(t, v):
        n = count or len(parts)
        if parts is None:
            extra = {"num_outputs": n} if v >= 18 else {}
            if v < 18 and shape[axis] % n:
                return None
            return [values(shape, t)], {"axis": axis, **extra}, n
        if v < 13:
            return [values(shape, t)], {"axis": axis, "split": parts}, n
        return [values(shape, t), ints(*parts)], {"axis": axis}, n
    return make


add("Split", "parts", split([6, 4], [1, 2, 3]))
add("Split", "axis", split([6, 4], [1, 3], 1))
add("Split", "even", split([6, 4], None, 0, 3))
add("Split", "uneven", split([7, 4], None, 0, 3))
add("Split", "zero", split([6, 4], [0, 6, 0]))
add("Concat", "two", lambda t, v: ([values([2, 3], t), values([2, 4], t)], {"axis": 1}))
add("Concat", "three", lambda t, v: ([values([2, 3], t), values([1, 3], t), values([4, 3], t)], {"axis": 0}))
add("Concat", "negative", lambda t, v: ([values([2, 3], t), values([2, 4], t)], {"axis": -1}) if v >= 11 else None)
add("Concat", "one", lambda t, v: ([values([2, 3], t)], {"axis": 0}))
add("Concat", "empty", lambda t, v: ([values([2, 0], t), values([2, 3], t)], {"axis": 1}))
add("Tile", "plain", lambda t, v: ([values([2, 3], t), ints(2, 3)], {}) if v >= 6 else None)
add("Tile", "none", lambda t, v: ([values([2, 3], t), ints(1, 0)], {}) if v >= 6 else None)
for mode in ("DCR", "CRD"):
    add("DepthToSpace", mode.lower(), lambda t, v, m=mode: ([values([2, 8, 2, 3], t)], {"blocksize": 2, **({"mode": m} if v >= 11 else {})}))
add("SpaceToDepth", "plain", lambda t, v: ([values([2, 2, 4, 6], t)], {"blocksize": 2}))
add("ReverseSequence", "time", lambda t, v: ([values([4, 3, 2], t), ints(4, 2, 1)], {"time_axis": 0, "batch_axis": 1}))
add("ReverseSequence", "batch", lambda t, v: ([values([3, 4, 2], t), ints(4, 2, 1)], {"time_axis": 1, "batch_axis": 0}))
for to in ([5, 7], [2, 3], [7, 3]):
    add("CenterCropPad", f"{to[0]}_{to[1]}", lambda t, v, to=to: ([values([4, 5], t), ints(*to)], {}))
add("CenterCropPad", "axes", lambda t, v: ([values([4, 5, 3], t), ints(6, 2)], {"axes": [-1, 0]}))

# Indexing.
for axis in (0, 1, -1):
    add("Gather", f"axis_{axis}", lambda t, v, a=axis: ([values([3, 4, 5], t), ints(0, 2, 1)], {"axis": a}))
    add("Gather", f"matrix_{axis}", lambda t, v, a=axis: ([values([3, 4, 5], t), np.array([[0, 2], [1, 1]], i32)], {"axis": a}))
add("Gather", "scalar", lambda t, v: ([values([3, 4], t), np.array(1, i64)], {}))
add("Gather", "negative", lambda t, v: ([values([3, 4], t), ints(-1, -2, 0)], {}) if v >= 11 else None)
add("Gather", "empty", lambda t, v: ([values([3, 4], t), np.zeros([0], i64)], {}))
add("GatherElements", "plain", lambda t, v: ([values([3, 3], t), np.array([[1, 2, 0], [2, 0, 0]], i64)], {"axis": 0}))
add("GatherElements", "negative", lambda t, v: ([values([3, 3], t), np.array([[-1, -2, 0], [-2, 0, 0]], i32)], {"axis": 1}))
add("GatherND", "plain", lambda t, v: ([values([2, 2, 3], t), np.array([[0, 1], [1, 0]], i64)], {}))
add("GatherND", "full", lambda t, v: ([values([2, 2], t), np.array([[0, 0], [1, 1]], i64)], {}))
add("GatherND", "batch", lambda t, v: ([values([2, 2, 3], t), np.array([[1], [0]], i64)], {"batch_dims": 1}) if v >= 12 else None)
add("GatherND", "negative", lambda t, v: ([values([2, 2, 3], t), np.array([[-1, -1]], i64)], {}))
add("Scatter ScatterElements", "plain", lambda t, v: ([values([3, 3], t), np.array([[1, 0, 2], [0, 2, 1]], i64), values([2, 3], t, seed=1)], {}))
add("Scatter ScatterElements", "axis", lambda t, v: ([values([1, 5], t), np.array([[1, 3]], i64), values([1, 2], t, seed=1)], {"axis": 1}))
add("ScatterElements", "negative", lambda t, v: ([values([1, 5], t), np.array([[1, -3]], i32), values([1, 2], t, seed=1)], {"axis": 1}))
for how in ("add", "mul", "min", "max"):
    since = 16 if how in ("add", "mul") else 18
    add("ScatterElements", how, lambda t, v, h=how, s=since: ([values([1, 5], t), np.array([[1, 1, 3]], i64), values([1, 3], t, seed=1)], {"axis": 1, "reduction": h}) if v >= s and t.kind not in "bO" else None)
    add("ScatterND", how, lambda t, v, h=how, s=since: ([values([4, 3], t), np.array([[1], [1], [3]], i64), values([3, 3], t, seed=1)], {"reduction": h}) if v >= s and t.kind not in "bO" else None)
add("ScatterND", "rows", lambda t, v: ([values([4, 3], t), np.array([[1], [3]], i64), values([2, 3], t, seed=1)], {}))
add("ScatterND", "elements", lambda t, v: ([values([4, 3], t), np.array([[1, 0], [3, -1]], i64), values([2], t, seed=1)], {}))
add("OneHot", "plain", lambda t, v: ([np.array([0, 7, 8, 2], t), np.array(10, t), values([2], f32)], {}) if t.kind in "iuf" else None)
add("OneHot", "axis", lambda t, v: ([np.array([[1, 9], [2, 4]], t), np.array([10], t), np.array([1, 3], t)], {"axis": 1}) if t.kind in "iuf" else None)
add("OneHot", "negative", lambda t, v: ([np.array([-1, -7, 8], t), np.array([10], i64), np.array([0, 1], i32)], {"axis": -2}) if t.kind in "if" else None)
add("Compress", "axis", lambda t, v: ([values([3, 4], t), np.array([0, 1, 1], np.bool_)], {"axis": 0}))
add("Compress", "flat", lambda t, v: ([values([3, 4], t), np.array([0, 1, 1, 0, 1], np.bool_)], {}))
add("NonZero", "plain", lambda t, v: ([values([3, 4], t, 0, 2)], {}))
add("TopK", "largest", lambda t, v: ([values([3, 40], t, 0, 100) if t.itemsize > 0 else None, ints(3)], {"axis": 1}, 2) if v >= 10 else ([values([3, 8], t, 0, 100)], {"k": 3, "axis": 1}, 2))
add("TopK", "smallest", lambda t, v: ([values([7, 3], t, 0, 120), ints(2)], {"axis": 0, "largest": 0}, 2) if v >= 11 else None)
add("Unique", "flat", lambda t, v: ([values([6], t, 0, 3)], {}, 4))
add("Unique", "unsorted", lambda t, v: ([values([6], t, 0, 3)], {"sorted": 0}, 4))
add("Unique", "axis", lambda t, v: ([np.array([[1, 0, 0], [1, 0, 0], [2, 3, 4]], t) if t.kind not in "Ob" else None], {"axis": 0}, 4) if t.kind not in "Ob" else None)
add("Trilu", "upper", lambda t, v: ([values([2, 4, 5], t)], {}))
add("Trilu", "lower", lambda t, v: ([values([2, 4, 5], t)], {"upper": 0}))
for k in (-7, -1, 1, 6):
    add("Trilu", f"k_{k}", lambda t, v, k=k: ([values([4, 5], t), np.array(k, i64)], {"upper": k % 2}))
add("EyeLike", "plain", lambda t, v: ([values([3, 4], t)], {}))
add("EyeLike", "k", lambda t, v: ([values([3, 4], t)], {"k": 1, "dtype": 11}))
add("EyeLike", "down", lambda t, v: ([values([3, 4], t)], {"k": -1, "dtype": 7}))
add("Range", "up", lambda t, v: ([np.array(1, t), np.array(11, t), np.array(2, t)], {}))
add("Range", "down", lambda t, v: ([np.array(10, t), np.array(6, t), np.array(-3, t)], {}) if t.kind != "u" else None)
add("Range", "none", lambda t, v: ([np.array(5, t), np.array(1, t), np.array(1, t)], {}))
for kind in (1, 6, 7, 9, 11, 2, 10):
    add("ConstantOfShape", f"type_{kind}", lambda t, v, k=kind: ([ints(2, 3)], {"value": helper.make_tensor("v", k, [1], [1])}))
add("ConstantOfShape", "default", lambda t, v: ([ints(2, 3)], {}))
add("ConstantOfShape", "empty", lambda t, v: ([ints(0)], {}))
add("ConstantOfShape", "scalar", lambda t, v: ([np.zeros([0], i64)], {}))
add("ConstantOfShape", "large", lambda t, v: ([ints(100, 100)], {"value": helper.make_tensor("v", 1, [1], [2.5])}))

# Reductions.
REDUCTIONS = "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceSumSquare ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp"


def reduction(shape, axes, **attributes):
    def make(t, v, op):
        if v < 11 and axes and min(axes) < 0:
            return None
        low = 1 if op in ("ReduceLogSum", "ReduceProd") else 0 if t.kind == "u" else -2
        x = values(shape, t, low, 3)
        as_input = v >= 18 or v >= 13 and op == "ReduceSum"
        if not as_input and "noop_with_empty_axes" in attributes:
            return None
        if axes is None or not axes and not as_input:
            return [x], attributes
        return ([x, ints(*axes)], attributes) if as_input else ([x], {"axes": axes, **attributes})
    return make


for op in REDUCTIONS.split():
    for label, made in {
        "one": reduction([3, 4, 5], [1]), "dropped": reduction([3, 4, 5], [1], keepdims=0), "two": reduction([3, 2, 5], [0, 2]),
        "all": reduction([3, 2, 3], None), "all_dropped": reduction([3, 2, 3], None, keepdims=0), "negative": reduction([3, 4, 5], [-2]),
        "noop": reduction([3, 2], [], noop_with_empty_axes=1), "noop_missing": reduction([3, 2], None, noop_with_empty_axes=1),
        "empty_axes": reduction([3, 2], []), "scalar": reduction([], None), "empty_set": reduction([2, 0, 4], [1]),
    }.items():
        add(op, label, lambda t, v, made=made, op=op: made(t, v, op))
for axis in (0, 1, -1):
    for extra in ({}, {"keepdims": 0}, {"select_last_index": 1}):
        label = f"axis_{axis}" + "".join(f"_{k}" for k in extra)
        add("ArgMax ArgMin", label, lambda t, v, a=axis, e=extra: ([values([3, 4, 5], t, 0, 3)], {"axis": a, **e}) if (a >= 0 or v >= 11) and ("select_last_index" not in e or v >= 12) else None)
for op in ("CumSum", "CumProd"):
    for extra in ({}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}):
        label = "_".join(extra) or "plain"
        add(op, label, lambda t, v, e=extra: ([values([2, 5, 3], t, 1, 2), np.array(1, i64)], e))
    add(op, "axis_int32", lambda t, v: ([values([2, 5], t, 1, 2), np.array(-1, i32)], {}))

# Products.
add("MatMul", "matrices", lambda t, v: ([values([3, 4], t), values([4, 5], t, seed=1)], {}))
add("MatMul", "batch", lambda t, v: ([values([2, 1, 3, 4], t), values([5, 4, 2], t, seed=1)], {}))
add("MatMul", "vector_left", lambda t, v: ([values([4], t), values([2, 4, 3], t, seed=1)], {}))
add("MatMul", "vector_right", lambda t, v: ([values([2, 3, 4], t), values([4], t, seed=1)], {}))
add("MatMul", "vectors", lambda t, v: ([values([4], t), values([4], t, seed=1)], {}))
add("MatMul", "inner_0", lambda t, v: ([values([3, 0], t), values([0, 5], t, seed=1)], {}))
for ta in (0, 1):
    for tb in (0, 1):
        add("Gemm", f"t{ta}{tb}", lambda t, v, ta=ta, tb=tb: ([values([4, 3] if ta else [3, 4], t), values([5, 4] if tb else [4, 5], t, seed=1), values([5], t)], {"transA": ta, "transB": tb, **({"broadcast": 1} if v < 7 else {})}))
add("Gemm", "scaled", lambda t, v: ([values([3, 4], t), values([4, 5], t, seed=1), values([3, 5], t)], {"alpha": 2.0, "beta": 3.0}))
add("Gemm", "half_scaled", lambda t, v: ([values([3, 4], t), values([4, 5], t, seed=1), values([3, 1], t)], {"alpha": 0.25, "beta": 0.35}) if v >= 7 and is_float(t) else None)
add("Gemm", "no_bias", lambda t, v: ([values([3, 4], t), values([4, 5], t, seed=1)], {}) if v >= 11 else None)
add("Gemm", "scalar_bias", lambda t, v: ([values([3, 4], t), values([4, 5], t, seed=1), values([], t)], {}) if v >= 7 else None)
add("Gemm", "column_bias", lambda t, v: ([values([3, 4], t), values([5, 4], t, seed=1), values([1, 1], t)], {"transB": 1}) if v >= 7 else None)
add("Det", "one", lambda t, v: ([values([3, 3], t)], {}))
add("Det", "many", lambda t, v: ([values([2, 3, 4, 4], t)], {}))
for equation, shapes in {
    "ij,jk": [[3, 4], [4, 5]], "ij,jk->ik": [[3, 4], [4, 5]], "bij,bjk->bik": [[2, 3, 4], [2, 4, 5]], "ij->ji": [[3, 4]],
    "i,i": [[5], [5]], "ij->i": [[3, 4]], "ii->i": [[4, 4]], "ii": [[4, 4]], "...ii->...i": [[2, 3, 3]], "i,j->ij": [[3], [4]],
    "bhwc,hkc->bhwk": [[2, 3, 4, 5], [3, 6, 5]], "...ij,...jk->...ik": [[2, 3, 4], [1, 4, 5]], "ij,jk,kl->il": [[2, 3], [3, 4], [4, 5]],
    "bnsd,bntd->bnst": [[2, 3, 4, 5], [2, 3, 6, 5]], "ijk,jil->kl": [[2, 3, 4], [3, 2, 5]], "ij->": [[3, 4]], " i j , j k -> i k ": [[3, 4], [4, 5]],
}.items():
    label = equation.replace("->", "_to_").replace(",", "_").replace("...", "E").replace(" ", "")
    add("Einsum", label, lambda t, v, e=equation, s=shapes: ([values(x, t, -2, 2, i) for i, x in enumerate(s)], {"equation": e}))

# Softmax and norms.
for axis in (0, 1, 2, -1):
    add("Softmax LogSoftmax Hardmax", f"axis_{axis}", lambda t, v, a=axis: ([values([2, 3, 4], t)], {"axis": a}) if a >= 0 or v >= 11 else None)
add("Softmax LogSoftmax Hardmax", "default", lambda t, v: ([values([2, 3, 4], t)], {}))
add("Softmax LogSoftmax", "large", lambda t, v: ([np.array([[0, 1, 2, 3], [1000, 1001, 1002, 1003]], t)], {}))
for axis in (-1, -2, 0, 1, 2):
    for op in ("LayerNormalization", "RMSNormalization"):
        def norm(t, v, a=axis, op=op):
            shape = [2, 3, 4]
            tail = shape[a:] if a else shape
            inputs = [values(shape, t), values(tail, t, seed=1)]
            if op == "LayerNormalization":
                return [*inputs, values(tail, t, seed=2)], {"axis": a, "epsilon": 1e-3}, 3
            return inputs, {"axis": a}
        add(op, f"axis_{axis}", norm)
add("LayerNormalization", "no_bias", lambda t, v: ([values([2, 3, 4], t), values([4], t, seed=1)], {}))
add("RMSNormalization", "broadcast", lambda t, v: ([values([2, 3, 4], t), values([4], t, seed=1)], {"axis": -2}))


def batch_norm(shape):
    def make(t, v):
        c = shape[1] if len(shape) > 1 else 1
        extra = {"epsilon": 1e-2} if v >= 7 else {"epsilon": 1e-2, "is_test": 1, **({"consumed_inputs": [0, 0, 0, 1, 1]} if v < 6 else {})}
        return [values(shape, t), *[values([c], t, 0.5, 2, i) for i in range(4)]], extra
    return make


for shape in ([2, 3], [2, 3, 4], [2, 3, 4, 5], [1, 3, 2, 3, 2]):
    add("BatchNormalization", f"rank_{len(shape)}", batch_norm(shape))
    if len(shape) > 2:
        add("InstanceNormalization", f"rank_{len(shape)}", lambda t, v, s=shape: ([values(s, t), values([3], t, seed=1), values([3], t, seed=2)], {"epsilon": 1e-2, **({"consumed_inputs": [0, 0, 0]} if v < 6 else {})}))
        add("GroupNormalization", f"rank_{len(shape)}", lambda t, v, s=shape: ([values([s[0], 6, *s[2:]], t), *[values([3 if v < 21 else 6], t, seed=i) for i in (1, 2)]], {"num_groups": 3, "epsilon": 1e-2}))
add("BatchNormalization", "training", lambda t, v: (batch_norm([2, 3, 4])(t, v)[0], {"training_mode": 1}, 3) if v >= 14 else None)
for axis in (0, 1, -1):
    for p in (1, 2):
        add("LpNormalization", f"axis_{axis}_p{p}", lambda t, v, a=axis, p=p: ([values([2, 3, 4], t)], {"axis": a, "p": p}))
add("LpNormalization", "zeros", lambda t, v: ([np.zeros([2, 3], t)], {}))
add("MeanVarianceNormalization", "default", lambda t, v: ([values([2, 3, 4, 5], t)], {}))
add("MeanVarianceNormalization", "axes", lambda t, v: ([values([2, 3, 4, 5], t)], {"axes": [1, -1]}))
for size in (1, 2, 3, 5):
    add("LRN", f"size_{size}", lambda t, v, s=size: ([values([2, 5, 3, 3], t)], {"size": s, "alpha": 0.2, "beta": 0.5, "bias": 2.0}))
add("LRN", "default", lambda t, v: ([values([2, 5, 3, 3], t)], {"size": 3}))

# Windows.
for label, x, w, attributes in [
    ("plain_1d", [2, 3, 9], [4, 3, 3], {}), ("strided_1d", [2, 3, 9], [4, 3, 3], {"strides": [2], "pads": [1, 2]}),
    ("plain_2d", [1, 3, 6, 7], [4, 3, 3, 3], {}), ("padded_2d", [1, 3, 6, 7], [4, 3, 3, 3], {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ("uneven_2d", [1, 3, 6, 7], [4, 3, 3, 2], {"pads": [0, 1, 2, 0], "dilations": [2, 1]}), ("grouped", [1, 4, 5, 5], [6, 2, 3, 3], {"group": 2}),
    ("depthwise", [2, 4, 5, 5], [4, 1, 3, 3], {"group": 4, "pads": [1, 1, 1, 1]}), ("upper", [1, 2, 5, 6], [3, 2, 3, 3], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ("lower", [1, 2, 5, 6], [3, 2, 2, 2], {"auto_pad": "SAME_LOWER", "strides": [2, 2]}), ("valid", [1, 2, 5, 6], [3, 2, 3, 3], {"auto_pad": "VALID"}),
    ("plain_3d", [1, 2, 4, 5, 4], [3, 2, 2, 3, 2], {}), ("padded_3d", [1, 2, 4, 5, 4], [3, 2, 3, 3, 3], {"pads": [1, 1, 1, 1, 1, 1], "strides": [2, 1, 2]}),
    ("one", [1, 2, 5, 6], [3, 2, 1, 1], {"kernel_shape": [1, 1]}), ("upper_1d", [1, 2, 8], [3, 2, 4], {"auto_pad": "SAME_UPPER", "strides": [3]}),
    ("upper_dilated", [1, 2, 9, 9], [3, 2, 3, 3], {"auto_pad": "SAME_UPPER", "dilations": [2, 2]}),
]:
    add("Conv", label, lambda t, v, x=x, w=w, a=attributes: ([values(x, t, -1, 1), values(w, t, -1, 1, 1), values([w[0]], t, seed=2)], a))
    add("Conv", label + "_no_bias", lambda t, v, x=x, w=w, a=attributes: ([values(x, t, -1, 1), values(w, t, -1, 1, 1)], a) if t == np.float32 else None)
for label, x, w, attributes in [
    ("plain_1d", [1, 2, 4], [2, 3, 3], {}), ("strided_1d", [1, 2, 4], [2, 3, 3], {"strides": [2], "pads": [1, 1], "output_padding": [1]}),
    ("plain_2d", [1, 2, 3, 4], [2, 3, 3, 3], {}), ("strided_2d", [1, 2, 3, 4], [2, 3, 3, 3], {"strides": [3, 2]}),
    ("padded", [1, 2, 3, 4], [2, 3, 3, 3], {"strides": [3, 2], "pads": [1, 2, 1, 2]}), ("dilated", [1, 2, 3, 4], [2, 3, 2, 2], {"dilations": [2, 2]}),
    ("grouped", [1, 4, 3, 3], [4, 2, 2, 2], {"group": 2, "strides": [2, 2]}), ("output_padding", [1, 2, 3, 4], [2, 3, 3, 3], {"strides": [3, 2], "output_padding": [1, 1]}),
    ("shape", [1, 2, 3, 3], [2, 3, 3, 3], {"strides": [3, 2], "output_shape": [10, 8]}), ("upper", [1, 2, 3, 3], [2, 3, 3, 3], {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ("lower", [1, 2, 3, 3], [2, 3, 3, 3], {"strides": [2, 2], "auto_pad": "SAME_LOWER"}), ("plain_3d", [1, 2, 2, 3, 2], [2, 2, 2, 2, 2], {"strides": [2, 1, 2]}),
    ("shape_lower", [1, 2, 3, 3], [2, 3, 3, 3], {"strides": [3, 2], "output_shape": [10, 8], "auto_pad": "SAME_LOWER"}),
    ("uneven", [1, 2, 3, 4], [2, 3, 3, 3], {"strides": [2, 2], "pads": [0, 1, 1, 0]}), ("valid", [1, 2, 3, 4], [2, 3, 3, 3], {"auto_pad": "VALID"}),
]:
    add("ConvTranspose", label, lambda t, v, x=x, w=w, a=attributes: ([values(x, t, -1, 1), values(w, t, -1, 1, 1)], a))
    add("ConvTranspose", label + "_bias", lambda t, v, x=x, w=w, a=attributes: ([values(x, t, -1, 1), values(w, t, -1, 1, 1), values([w[1] * a.get("group", 1)], t, seed=2)], a) if t == np.float32 else None)
POOLS = [
    ("1d", [1, 3, 9], {"kernel_shape": [2]}, 1), ("2d", [1, 3, 7, 8], {"kernel_shape": [2, 2]}, 1), ("3d", [1, 2, 5, 5, 5], {"kernel_shape": [2, 2, 2]}, 1),
    ("strides", [1, 3, 9, 9], {"kernel_shape": [3, 3], "strides": [2, 3]}, 1), ("pads", [1, 3, 7, 7], {"kernel_shape": [3, 3], "pads": [2, 2, 2, 2]}, 1),
    ("uneven", [1, 3, 7, 7], {"kernel_shape": [3, 2], "pads": [0, 1, 1, 0], "strides": [2, 2]}, 1), ("upper", [1, 3, 7, 8], {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "strides": [2, 2]}, 1),
    ("lower", [1, 3, 7, 8], {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER"}, 1), ("valid", [1, 3, 7, 8], {"kernel_shape": [2, 3], "auto_pad": "VALID"}, 1),
    ("ceil", [1, 2, 6, 7], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, 10), ("ceil_pads", [1, 2, 6, 7], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "pads": [1, 1, 1, 1]}, 10),
    ("dilated", [1, 2, 7, 7], {"kernel_shape": [2, 2], "dilations": [2, 2]}, 10), ("dilated_ceil", [1, 2, 8, 8], {"kernel_shape": [2, 2], "dilations": [3, 3], "strides": [2, 2], "ceil_mode": 1}, 10),
    ("ceil_beyond", [1, 1, 2, 2], {"kernel_shape": [1, 1], "strides": [2, 2], "ceil_mode": 1}, 10), ("ceil_1d", [1, 2, 10], {"kernel_shape": [3], "strides": [2], "ceil_mode": 1, "pads": [1, 1]}, 10),
]
for label, x, attributes, since in POOLS:
    def fits(op, v, a, since=since):
        if op == "AveragePool":
            since = max(since, 19 if "dilations" in a else 0)
        if op == "LpPool":
            since = 18 if since > 1 else 1
        return v >= since
    add("MaxPool", label, lambda t, v, x=x, a=attributes, f=fits: ([values(x, t, -9, 9)], a) if f("MaxPool", v, a) else None)
    if "lower" not in label and "upper" not in label:
        add("MaxPool", label + "_indices", lambda t, v, x=x, a=attributes, f=fits: ([np.arange(np.prod(x)).reshape(x).astype(t)], a, 2) if v >= 8 and f("MaxPool", v, a) and t == np.float32 else None)
        add("MaxPool", label + "_columns", lambda t, v, x=x, a=attributes, f=fits: ([np.arange(np.prod(x)).reshape(x).astype(t)], {**a, "storage_order": 1}, 2) if v >= 8 and len(x) == 4 and f("MaxPool", v, a) and t == np.float32 else None)
    add("AveragePool", label, lambda t, v, x=x, a=attributes, f=fits: ([values(x, t)], a) if f("AveragePool", v, a) else None)
    add("AveragePool", label + "_counted", lambda t, v, x=x, a=attributes, f=fits: ([values(x, t)], {**a, "count_include_pad": 1}) if v >= 7 and f("AveragePool", v, a) else None)
    add("LpPool", label, lambda t, v, x=x, a=attributes, f=fits: ([values(x, t)], {**a, "p": 2 if v >= 2 else 2.0}) if f("LpPool", v, a) else None)
    add("LpPool", label + "_p3", lambda t, v, x=x, a=attributes, f=fits: ([values(x, t)], {**a, "p": 3}) if v >= 2 and f("LpPool", v, a) else None)
for shape in ([2, 3, 5], [2, 3, 4, 5], [2, 3, 2, 3, 2]):
    add("GlobalAveragePool GlobalMaxPool GlobalLpPool", f"rank_{len(shape)}", lambda t, v, s=shape: ([values(s, t)], {}))
add("MaxUnpool", "plain", lambda t, v: ([np.array([[[[1, 2], [3, 4]]]], t), np.array([[[[5, 7], [13, 15]]]], i64)], {"kernel_shape": [2, 2], "strides": [2, 2]}))
add("MaxUnpool", "shape", lambda t, v: ([np.array([[[[5, 6], [7, 8]]]], t), np.array([[[[5, 7], [13, 15]]]], i64), ints(1, 1, 5, 5)], {"kernel_shape": [2, 2], "strides": [2, 2]}))
for label, to, block, attributes in [("plain", [5, 5], [1, 5], {}), ("strides", [5, 5], [3, 3], {"strides": [2, 2]}), ("pads", [5, 5], [1, 5], {"pads": [0, 1, 0, 1]}), ("dilations", [6, 6], [2, 2], {"dilations": [1, 5]}), ("1d", [7], [3], {}), ("3d", [4, 4, 4], [1, 2, 2], {})]:
    def columns(t, v, to=to, block=block, a=attributes):
        n = len(to)
        pads, strides, dilations = a.get("pads", [0] * 2 * n), a.get("strides", [1] * n), a.get("dilations", [1] * n)
        count = 1
        for i in range(n):
            count *= (to[i] + pads[i] + pads[n + i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1
        return [values([1, 2 * int(np.prod(block)), count], t), ints(*to), ints(*block)], a
    add("Col2Im", label, columns)

# Resize, Upsample, Pad.
MODES = [("nearest", {}), ("linear", {}), ("cubic", {}), ("cubic", {"cubic_coeff_a": -0.5}), ("cubic", {"exclude_outside": 1}),
         *[("nearest", {"nearest_mode": m}) for m in ("floor", "ceil", "round_prefer_ceil")]]
for mode, extra in MODES:
    for place in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"):
        for label, scales, sizes in [("up", [1, 1, 2, 2], None), ("down", [1, 1, 0.6, 0.6], None), ("odd", [1, 1, 1.3, 2.4], None), ("size", None, [1, 1, 7, 8]), ("smaller", None, [1, 1, 3, 1]), ("both", None, [1, 1, 9, 2])]:
            def resize(t, v, mode=mode, extra=extra, place=place, scales=scales, sizes=sizes):
                if v < 11 or (place == "half_pixel_symmetric" and v < 19) or t not in (np.dtype(f32), np.dtype(np.uint8)):
                    return None
                attributes = {"mode": mode, "coordinate_transformation_mode": place, **extra}
                roi = None if v >= 13 else np.zeros([0], f32)
                empty = np.zeros([0], f32) if v < 13 else None
                x = values([1, 1, 4, 5], t, 0, 100)
                if t == np.uint8 and (mode != "nearest" or place != "asymmetric"):
                    return None
                if scales:
                    return [x, roi, np.array(scales, f32)], attributes
                return [x, roi, empty, ints(*sizes)], attributes
            add("Resize", "_".join([mode, *(str(e) for e in extra.values()), place, label]), resize)
for mode in ("linear", "cubic"):
    for label, scales in [("down", [1, 1, 0.6, 0.6]), ("odd", [1, 1, 0.45, 0.8])]:
        add("Resize", f"{mode}_antialias_{label}", lambda t, v, m=mode, s=scales: ([values([1, 1, 6, 7], t), None, np.array(s, f32)], {"mode": m, "antialias": 1}) if v >= 18 and t == np.float32 else None)
        add("Resize", f"{mode}_antialias_outside_{label}", lambda t, v, m=mode, s=scales: ([values([1, 1, 6, 7], t), None, np.array(s, f32)], {"mode": m, "antialias": 1, "exclude_outside": 1}) if v >= 18 and t == np.float32 else None)
for policy in ("not_larger", "not_smaller", "stretch"):
    for mode in ("nearest", "linear"):
        add("Resize", f"{policy}_{mode}", lambda t, v, p=policy, m=mode: ([values([1, 1, 3, 4], t), None, None, ints(7, 8)], {"mode": m, "keep_aspect_ratio_policy": p, "axes": [2, 3]}) if v >= 18 and t == np.float32 else None)
        add("Resize", f"{policy}_{mode}_down", lambda t, v, p=policy, m=mode: ([values([1, 1, 5, 6], t), None, None, ints(3, 2)], {"mode": m, "keep_aspect_ratio_policy": p, "axes": [2, 3]}) if v >= 18 and t == np.float32 else None)
add("Resize", "axes", lambda t, v: ([values([1, 1, 3, 4], t), None, np.array([2, 3], f32)], {"mode": "linear", "axes": [3, 2]}) if v >= 18 and t == np.float32 else None)
add("Resize", "axes_negative", lambda t, v: ([values([1, 1, 3, 4], t), None, None, ints(6, 5)], {"mode": "linear", "axes": [-1, -2]}) if v >= 18 and t == np.float32 else None)
for mode in ("linear", "nearest", "cubic"):
    add("Resize", f"crop_{mode}", lambda t, v, m=mode: ([values([1, 1, 4, 4], t), np.array([0, 0, 0.4, 0.6, 1, 1, 0.6, 0.8], f32), np.zeros([0], f32) if v < 13 else None, ints(1, 1, 3, 3)], {"mode": m, "coordinate_transformation_mode": "tf_crop_and_resize"}) if v >= 11 and t == np.float32 else None)
    add("Resize", f"crop_beyond_{mode}", lambda t, v, m=mode: ([values([1, 1, 4, 4], t), np.array([0, 0, 0.4, 0.6, 1, 1, 1.2, 1.7], f32), np.zeros([0], f32) if v < 13 else None, ints(1, 1, 3, 3)], {"mode": m, "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 10.0}) if v >= 11 and t == np.float32 else None)
    add("Resize", f"crop_axes_{mode}", lambda t, v, m=mode: ([values([1, 1, 4, 4], t), np.array([0.6, 0.4, 0.8, 0.6], f32), None, ints(3, 3)], {"mode": m, "coordinate_transformation_mode": "tf_crop_and_resize", "axes": [3, 2]}) if v >= 18 and t == np.float32 else None)
for mode in ("nearest", "linear"):
    for shape, scales in (([1, 1, 2, 3], [1, 1, 2, 3]), ([1, 2, 3], [1, 1, 2]), ([1, 1, 2, 2, 2], [1, 1, 2, 1, 3])):
        add("Resize Upsample", f"old_{mode}_{len(shape)}", lambda t, v, m=mode, x=shape, s=scales: ([values(x, t)], {"mode": m, "scales": [float(n) for n in s]}) if v == 7 and t == np.float32 else ([values(x, t), np.array(s, f32)], {"mode": m}) if v in (9, 10) and t == np.float32 else None)


def pad(shape, amounts, mode="constant", value=None, axes=None, wide=i64):
    def make(t, v):
        if mode == "wrap" and v < 19 or axes and v < 18 or (mode != "constant" and v < 2):
            return None
        if v < 11:
            key = "paddings" if v < 2 else "pads"
            return [values(shape, t)], {key: amounts, "mode": mode, **({"value": float(value)} if value is not None else {})}
        inputs = [values(shape, t), ints(*amounts)]
        if value is not None or axes:
            inputs.append(np.array(value, t) if value is not None else None)
        if axes:
            inputs.append(np.array(axes, wide))
        return inputs, {"mode": mode}
    return make


add("Pad", "constant", pad([1, 3, 4, 5], [0, 0, 1, 3, 0, 0, 2, 4], value=1))
add("Pad", "zero", pad([1, 3, 4, 5], [0, 0, 1, 3, 0, 0, 2, 4]))
add("Pad", "cut", pad([3, 4, 5], [0, -1, 1, 0, 2, -2]))
for mode in ("reflect", "edge", "wrap"):
    add("Pad", mode, pad([1, 3, 4, 5], [0, 0, 1, 1, 0, 0, 1, 1], mode))
    add("Pad", mode + "_axes", pad([1, 3, 4, 5], [2, 1, 3, 1], mode, axes=[3, 2]))
    add("Pad", mode + "_cut", pad([1, 3, 4, 5], [0, 0, -1, 1, 0, 0, 1, -1], mode))
add("Pad", "axes", pad([1, 3, 4, 5], [2, 1, 3, 1], value=2, axes=[3, 1]))
add("Pad", "axes_negative", pad([1, 3, 4, 5], [2, 1, 3, 1], value=2, axes=[-1, -3], wide=i32))
add("Pad", "vector", pad([5], [1, 2]))

# Sampling.
for mode in ("bilinear", "nearest", "bicubic", "linear", "cubic"):
    for padding in ("zeros", "border", "reflection"):
        for corners in (0, 1):
            def grid(t, v, m=mode, p=padding, c=corners):
                if (m in ("linear", "cubic")) != (v >= 20) and m != "nearest" or t not in (np.dtype(f32), np.dtype(np.float64)):
                    return None
                return [values([2, 2, 4, 5], t), values([2, 3, 6, 2], t, -1.3, 1.3, 1)], {"mode": m, "padding_mode": p, "align_corners": c}
            add("GridSample", f"{mode}_{padding}_{corners}", grid)
            if mode in ("linear", "nearest"):
                add("GridSample", f"volume_{mode}_{padding}_{corners}", lambda t, v, m=mode, p=padding, c=corners: ([values([1, 2, 3, 4, 5], t), values([1, 2, 3, 2, 3], t, -1.3, 1.3, 1)], {"mode": m, "padding_mode": p, "align_corners": c}) if v >= 20 and t == np.float32 else None)
for corners in (0, 1):
    add("AffineGrid", f"2d_{corners}", lambda t, v, c=corners: ([values([2, 2, 3], t), ints(2, 3, 4, 5)], {"align_corners": c}))
    add("AffineGrid", f"3d_{corners}", lambda t, v, c=corners: ([values([2, 3, 4], t), ints(2, 3, 2, 4, 5)], {"align_corners": c}))
for mode in ("avg", "max"):
    for ratio in (0, 2):
        for half in (0, 1):
            add("RoiAlign", f"{mode}_{ratio}_{half}", lambda t, v, m=mode, r=ratio, h=half: ([values([2, 2, 8, 8], t), np.array([[0, 0, 5, 5], [1, 2, 7, 7.5], [3, 1, 4, 6]], t), ints(0, 1, 0)], {"mode": m, "sampling_ratio": r, "output_height": 3, "output_width": 2, "spatial_scale": 0.9, **({"coordinate_transformation_mode": "half_pixel" if h else "output_half_pixel"} if v >= 16 else {})}) if h or v >= 16 else None)
for label, x, w, attributes, mask in [("plain", [1, 2, 5, 5], [3, 2, 2, 2], {}, False), ("mask", [1, 2, 5, 5], [3, 2, 2, 2], {}, True), ("groups", [1, 4, 5, 5], [4, 2, 3, 3], {"group": 2, "offset_group": 2, "pads": [1, 1, 1, 1]}, True), ("strides", [1, 2, 7, 7], [2, 2, 3, 3], {"strides": [2, 2], "dilations": [1, 1]}, False)]:
    def deform(t, v, x=x, w=w, a=attributes, mask=mask):
        pads, strides = a.get("pads", [0] * 4), a.get("strides", [1, 1])
        out = [(x[2 + i] + pads[i] + pads[2 + i] - w[2 + i]) // strides[i] + 1 for i in range(2)]
        n = a.get("offset_group", 1) * w[2] * w[3]
        inputs = [values(x, t), values(w, t, -1, 1), values([1, 2 * n, *out], t, -0.7, 0.7)]
        return inputs + ([values([w[0]], t), values([1, n, *out], t, 0, 1)] if mask else []), {"kernel_shape": w[2:], **a}
    add("DeformConv", label, deform)

# Quantisation.
for zero in (np.uint8, np.int8, np.uint16, np.int16):
    name = np.dtype(zero).name
    add("QuantizeLinear", f"tensor_{name}", lambda t, v, z=zero: ([values([2, 3, 4], t, -100, 100), np.array(0.7, t if v >= 19 and t.kind == "f" else f32), np.array(3, z)], {}) if np.dtype(z).itemsize == 1 or v >= 21 else None)
    add("QuantizeLinear", f"axis_{name}", lambda t, v, z=zero: ([values([2, 3, 4], t, -100, 100), values([3], t if v >= 19 and t.kind == "f" else f32, 0.5, 2), values([3], z, 0, 9)], {"axis": 1}) if v >= 13 and (np.dtype(z).itemsize == 1 or v >= 21) else None)
    add("QuantizeLinear", f"block_{name}", lambda t, v, z=zero: ([values([2, 6, 4], t, -100, 100), values([2, 3, 4], f32 if t.kind == "i" else t, 0.5, 2), values([2, 3, 4], z, 0, 9)], {"axis": 1, "block_size": 2}) if v >= 21 else None)
add("QuantizeLinear", "no_zero", lambda t, v: ([values([2, 3, 4], t, 0, 100), np.array(0.7, t if v >= 19 and t.kind == "f" else f32)], {}))
add("QuantizeLinear", "halves", lambda t, v: ([np.array([0.5, 1.5, 2.5, -0.5, -1.5, 300, -300], t), np.array(1, f32), np.array(0, np.int8)], {}) if t == np.float32 else None)
add("QuantizeLinear", "dtype", lambda t, v: ([values([2, 3], t, -100, 100), np.array(0.7, t)], {"output_dtype": TensorProto.INT16}) if v >= 21 and t == np.float32 else None)
for kind in (f32, np.float16):
    name = np.dtype(kind).name
    add("DequantizeLinear", f"tensor_{name}", lambda t, v, k=kind: ([values([2, 3, 4], t, 0, 100), np.array(0.7, k), np.array(3, t)], {}) if (k == f32 or v >= 19) and t != np.int32 else None)
    add("DequantizeLinear", f"axis_{name}", lambda t, v, k=kind: ([values([2, 3, 4], t, 0, 100), values([3], k, 0.5, 2), values([3], t, 0, 9)], {"axis": -2}) if v >= 13 and (k == f32 or v >= 19) and t != np.int32 else None)
    add("DequantizeLinear", f"block_{name}", lambda t, v, k=kind: ([values([2, 7, 4], t, 0, 100), values([2, 3, 4], k, 0.5, 2), values([2, 3, 4], t, 0, 9)], {"axis": 1, "block_size": 3}) if v >= 21 and t != np.int32 else None)
add("DequantizeLinear", "no_zero", lambda t, v: ([values([2, 3, 4], t, 0, 100), np.array(0.7, f32)], {}))
add("DynamicQuantizeLinear", "plain", lambda t, v: ([values([3, 4], f32)], {}, 3))
add("DynamicQuantizeLinear", "positive", lambda t, v: ([values([3, 4], f32, 1, 9)], {}, 3))
add("DynamicQuantizeLinear", "negative", lambda t, v: ([values([3, 4], f32, -9, -1)], {}, 3))
for a in (np.uint8, np.int8):
    for b in (np.uint8, np.int8):
        label = f"{np.dtype(a).name}_{np.dtype(b).name}"
        add("MatMulInteger", label, lambda t, v, a=a, b=b: ([values([3, 4], a, -100, 100), values([4, 5], b, -100, 100), np.array(3, a), np.array(2, b)], {}) if t == np.uint8 else None)
        add("MatMulInteger", label + "_rows", lambda t, v, a=a, b=b: ([values([3, 4], a, -100, 100), values([4, 5], b, -100, 100), values([3], a, 0, 9), values([5], b, 0, 9)], {}) if t == np.uint8 else None)
        add("MatMulInteger", label + "_batch", lambda t, v, a=a, b=b: ([values([2, 3, 4], a, -100, 100), values([2, 4, 5], b, -100, 100)], {}) if t == np.uint8 else None)
        add("ConvInteger", label, lambda t, v, a=a, b=b: ([values([1, 2, 4, 4], a, -100, 100), values([3, 2, 2, 2], b, -100, 100), np.array(3, a)], {}) if t == np.uint8 else None)
        add("ConvInteger", label + "_pads", lambda t, v, a=a, b=b: ([values([1, 2, 4, 4], a, -100, 100), values([3, 2, 3, 3], b, -100, 100), np.array(3, a), np.array(1, b)], {"pads": [1, 1, 1, 1]}) if t == np.uint8 else None)
add("QLinearMatMul", "plain", lambda t, v: ([values([3, 4], t, -50, 50), np.array(0.02, f32), np.array(3, t), values([4, 5], t, -50, 50), np.array(0.03, f32), np.array(5, t), np.array(0.1, f32), np.array(7, t)], {}))
add("QLinearMatMul", "batch", lambda t, v: ([values([2, 3, 4], t, -50, 50), np.array(0.02, f32), np.array(3, t), values([2, 4, 5], t, -50, 50), np.array(0.03, f32), np.array(5, t), np.array(0.1, f32), np.array(7, t)], {}))
add("QLinearConv", "plain", lambda t, v: ([values([1, 2, 5, 5], t, -50, 50), np.array(0.02, f32), np.array(3, t), values([3, 2, 3, 3], t, -50, 50), values([3], f32, 0.01, 0.05), values([3], t, 0, 0), np.array(0.1, f32), np.array(7, t)], {}))
add("QLinearConv", "bias", lambda t, v: ([values([1, 2, 5, 5], t, -50, 50), np.array(0.02, f32), np.array(3, t), values([3, 2, 3, 3], t, -50, 50), np.array(0.04, f32), np.array(5, t), np.array(0.1, f32), np.array(7, t), values([3], i32, -200, 200)], {"pads": [1, 1, 1, 1], "strides": [2, 2]}))


# Casts between all types.
CASTS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26]
for to in CASTS:
    def cast(t, v, to=to):
        if to == 8 and v < 9 or to == 16 and v < 13 or 17 <= to <= 20 and v < 19 or to in (21, 22) and v < 21 or to == 23 and v < 23 or to == 24 and v < 24 or to > 24 and v < 25:
            return None
        x = np.array(["0", "1", "2.5", "-3", "7"], object) if t.kind == "O" else values([4, 5], t, -3 if to not in (2, 4, 12, 13, 21, 25) else 0, 3)
        if v < 6:
            return [x], {"to": TensorProto.DataType.Name(to)}
        return [x], {"to": to}
    add("Cast", TensorProto.DataType.Name(to).lower(), cast)
    if to < 14:
        add("CastLike", TensorProto.DataType.Name(to).lower(), lambda t, v, to=to: ([values([4, 5], t, 0, 3), values([1], helper.tensor_dtype_to_np_dtype(to))], {}) if t.kind != "O" and to != 8 else None)
add("BitCast", "uint32", lambda t, v: ([values([3, 4], t)], {"to": 12}) if t.itemsize == 4 and t.kind != "O" else None)
add("BitCast", "int16", lambda t, v: ([values([3, 4], t)], {"to": 5}) if t.itemsize == 2 else None)
add("BitCast", "float", lambda t, v: ([values([3, 4], t)], {"to": 1}) if t.itemsize == 4 and t.kind != "O" else None)
add("BitCast", "double", lambda t, v: ([values([3, 4], t)], {"to": 11}) if t.itemsize == 8 and t.kind != "O" else None)
add("BitCast", "uint8", lambda t, v: ([values([3, 4], t)], {"to": 2}) if t.itemsize == 1 and t.kind in "iu" else None)


# Recurrent layers.
def recurrent(gates, states, lengths=False, initial=False, bias=True, peepholes=False, **attributes):
    def make(t, v):
        if attributes.get("layout") and v < 14 or t != np.float32 and (lengths or peepholes):
            return None
        steps, batch, size, hidden = 4, 2, 3, 5
        d = 2 if attributes.get("direction") == "bidirectional" else 1
        x = values([steps, batch, size], t, -1, 1)
        h = values([d, batch, hidden], t, -1, 1, 5)
        c = values([d, batch, hidden], t, -1, 1, 6)
        if attributes.get("layout"):
            x, h, c = (np.swapaxes(a, 0, 1).copy() for a in (x, h, c))
        inputs = [x, values([d, gates * hidden, size], t, -1, 1, 1), values([d, gates * hidden, hidden], t, -1, 1, 2),
                  values([d, 2 * gates * hidden], t, -1, 1, 3) if bias else None,
                  np.array([4, 2], i32) if lengths else None]
        if initial or peepholes:
            inputs += [h, c] if states == 2 else [h]
        if peepholes:
            inputs.append(values([d, 3 * hidden], t, -1, 1, 4))
        return inputs, {"hidden_size": hidden, **attributes}, 1 + states
    return make


for op, gates, states in (("LSTM", 4, 2), ("GRU", 3, 1), ("RNN", 1, 1)):
    for label, extra in {
        "plain": {}, "no_bias": {"bias": False}, "initial": {"initial": True}, "reverse": {"direction": "reverse"}, "both": {"direction": "bidirectional", "initial": True},
        "batchwise": {"layout": 1, "initial": True}, "lengths": {"lengths": True}, "both_lengths": {"direction": "bidirectional", "lengths": True}, "clip": {"clip": 0.3},
    }.items():
        add(op, label, recurrent(gates, states, **extra))
add("LSTM", "peepholes", recurrent(4, 2, peepholes=True))
add("LSTM", "input_forget", recurrent(4, 2, input_forget=1))
add("GRU", "linear", recurrent(3, 1, linear_before_reset=1))
add("GRU", "linear_both", recurrent(3, 1, linear_before_reset=1, direction="bidirectional", initial=True))
add("RNN", "relu", recurrent(1, 1, activations=["Relu"]))
add("LSTM", "activations", recurrent(4, 2, activations=["HardSigmoid", "Relu", "Softsign"]))
add("GRU", "activations", recurrent(3, 1, activations=["HardSigmoid", "Relu"]))

# Signal.
for periodic in (0, 1):
    for kind in (1, 11):
        add("HannWindow HammingWindow BlackmanWindow", f"p{periodic}_{kind}", lambda t, v, p=periodic, k=kind: ([np.array(10, t)], {"periodic": p, "output_datatype": k}) if t.kind == "i" else None)
for inverse in (0, 1):
    for onesided in (0, 1):
        for parts in (1, 2):
            for length in (None, 6, 12):
                def dft(t, v, inverse=inverse, onesided=onesided, parts=parts, length=length):
                    if onesided and parts == 2 and not inverse or onesided and inverse and parts == 1:
                        return None
                    x = values([2, 9, 4, parts], t, -1, 1)
                    n = None if length is None else np.array(length, i64)
                    if v < 20:
                        return ([x, n] if length else [x]), {"axis": 1, "inverse": inverse, "onesided": onesided}
                    return [x, n, np.array(1, i64)], {"inverse": inverse, "onesided": onesided}
                add("DFT", f"i{inverse}_o{onesided}_{parts}_{length}", dft)
add("DFT", "default", lambda t, v: ([values([2, 9, 1], t)], {}))
add("DFT", "negative", lambda t, v: ([values([2, 3, 9, 2], t), None, np.array(-3, i64)], {}) if v >= 20 else None)
for onesided in (0, 1):
    add("STFT", f"length_{onesided}", lambda t, v, o=onesided: ([values([2, 40, 1], t), np.array(4, i64), None, np.array(8, i64)], {"onesided": o}))
    add("STFT", f"window_{onesided}", lambda t, v, o=onesided: ([values([2, 40, 1], t), np.array(4, i64), values([8], t), np.array(8, i64)], {"onesided": o}))
add("STFT", "window_only", lambda t, v: ([values([2, 40, 1], t), np.array(4, i64), values([8], t)], {}))
add("MelWeightMatrix", "plain", lambda t, v: ([np.array(8, i64), np.array(32, i64), np.array(8192, i64), np.array(0, f32), np.array(4096, f32)], {}))
add("MelWeightMatrix", "double", lambda t, v: ([np.array(6, i32), np.array(64, i32), np.array(16000, i32), np.array(80, f32), np.array(7600, f32)], {"output_datatype": 11}))


# Attention.
def attention(q, k, v, mask=None, past=None, lengths=None, outputs=1, **attributes):
    def make(t, version):
        d = k[-1] if len(k) == 4 else k[-1] // attributes["kv_num_heads"]
        if (lengths is not None and version < 24) or not is_float(t):
            return None
        inputs = [values(q, t, -1, 1), values(k, t, -1, 1, 1), values(v, t, -1, 1, 2)]
        if mask is not None or past is not None or lengths is not None:
            kind, shape = mask or (None, None)
            inputs.append(None if mask is None else values(shape, np.bool_ if kind == "bool" else t, -2, 2))
        if past is not None or lengths is not None:
            inputs += [values(past, t, -1, 1, 3), values(past, t, -1, 1, 4)] if past else [None, None]
        if lengths is not None:
            inputs.append(np.array(lengths, i64))
        return inputs, attributes, outputs
    return make


four, kv = [2, 4, 3, 8], [2, 4, 6, 8]
for label, made in {
    "plain": attention(four, kv, kv), "causal": attention(four, kv, kv, is_causal=1), "scaled": attention(four, kv, kv, scale=0.01), "softcap": attention(four, kv, kv, softcap=2.0),
    "mask_2d": attention(four, kv, kv, ("float", [3, 6])), "mask_bool": attention(four, kv, kv, ("bool", [3, 6])), "mask_3d": attention(four, kv, kv, ("float", [1, 3, 6])),
    "mask_4d": attention(four, kv, kv, ("float", [2, 4, 3, 6])), "mask_causal": attention(four, kv, kv, ("float", [2, 4, 3, 6]), is_causal=1),
    "gqa": attention([2, 8, 3, 8], [2, 2, 6, 8], [2, 2, 6, 8]), "gqa_causal": attention([2, 8, 3, 8], [2, 2, 6, 8], [2, 2, 6, 8], is_causal=1),
    "past": attention(four, [2, 4, 3, 8], [2, 4, 3, 8], None, [2, 4, 5, 8], outputs=3), "past_mask": attention(four, [2, 4, 3, 8], [2, 4, 3, 8], ("float", [3, 8]), [2, 4, 5, 8], outputs=3),
    "past_causal": attention(four, [2, 4, 3, 8], [2, 4, 3, 8], None, [2, 4, 5, 8], outputs=3, is_causal=1), "wide_v": attention(four, kv, [2, 4, 6, 10]),
    "3d": attention([2, 3, 24], [2, 6, 24], [2, 6, 24], q_num_heads=3, kv_num_heads=3), "3d_gqa": attention([2, 3, 24], [2, 6, 8], [2, 6, 8], q_num_heads=3, kv_num_heads=1),
    "3d_causal": attention([2, 3, 24], [2, 6, 24], [2, 6, 24], q_num_heads=3, kv_num_heads=3, is_causal=1), "3d_wide": attention([2, 3, 24], [2, 6, 24], [2, 6, 30], q_num_heads=3, kv_num_heads=3),
    "3d_mask": attention([2, 3, 24], [2, 6, 24], [2, 6, 24], ("float", [2, 1, 3, 6]), q_num_heads=3, kv_num_heads=3),
    "3d_past": attention([2, 3, 24], [2, 3, 24], [2, 3, 24], ("float", [3, 8]), [2, 3, 5, 8], outputs=3, q_num_heads=3, kv_num_heads=3),
    "lengths": attention(four, kv, kv, None, None, [3, 5]), "lengths_causal": attention(four, kv, kv, None, None, [3, 5], is_causal=1), "lengths_mask": attention(four, kv, kv, ("float", [3, 4]), None, [3, 4]),
    **{f"scores_{mode}": attention(four, kv, kv, ("float", [3, 6]), outputs=4, qk_matmul_output_mode=mode, softcap=1.5) for mode in range(4)},
    **{f"scores_causal_{mode}": attention(four, kv, kv, None, outputs=4, qk_matmul_output_mode=mode, is_causal=1) for mode in range(4)},
    **{f"scores_past_{mode}": attention(four, [2, 4, 3, 8], [2, 4, 3, 8], ("float", [3, 8]), [2, 4, 5, 8], outputs=4, qk_matmul_output_mode=mode) for mode in range(4)},
    "precision": attention(four, kv, kv, softmax_precision=1),
}.items():
    add("Attention", label, made)
for interleaved in (0, 1):
    for width in (0, 4):
        n = (width or 8) // 2
        extra = {"interleaved": interleaved, "rotary_embedding_dim": width}
        add("RotaryEmbedding", f"4d_{interleaved}_{width}", lambda t, v, e=extra, n=n: ([values([2, 4, 3, 8], t), values([10, n], t, -1, 1), values([10, n], t, -1, 1, 1), np.array([[0, 1, 2], [4, 5, 6]], i64)], e))
        add("RotaryEmbedding", f"4d_no_ids_{interleaved}_{width}", lambda t, v, e=extra, n=n: ([values([2, 4, 3, 8], t), values([2, 3, n], t, -1, 1), values([2, 3, n], t, -1, 1, 1)], e))
        add("RotaryEmbedding", f"3d_{interleaved}_{width}", lambda t, v, e=extra, n=n: ([values([2, 3, 32], t), values([10, n], t, -1, 1), values([10, n], t, -1, 1, 1), np.array([[0, 1, 2], [4, 5, 6]], i64)], {**e, "num_heads": 4}))
for mode in ("linear", "circular"):
    add("TensorScatter", mode, lambda t, v, m=mode: ([values([2, 3, 6, 4], t), values([2, 3, 2, 4], t, seed=1), ints(1, 4 if m == "linear" else 5)], {"mode": m}))
add("TensorScatter", "no_index", lambda t, v: ([values([2, 6, 4], t), values([2, 2, 4], t, seed=1)], {}))
add("TensorScatter", "axis", lambda t, v: ([values([2, 6, 4], t), values([2, 2, 4], t, seed=1), ints(1, 3)], {"axis": 1}))

# Losses.
for reduction_name in ("mean", "sum", "none"):
    for weighted in (0, 1):
        for ignored in (None, 1, -5):
            for shape in ([3, 5], [2, 5, 3], [2, 4, 3, 2]):
                def loss(t, v, r=reduction_name, w=weighted, i=ignored, s=shape):
                    labels = values([s[0], *s[2:]], i64, 0, 3)
                    if i is not None:
                        labels.ravel()[0] = i
                    extra = {"reduction": r, **({"ignore_index": i} if i is not None else {})}
                    return [values(s, t), labels, *([values([s[1]], t, 0.5, 1.5, 2)] if w else [])], extra
                label = f"{reduction_name}_{weighted}_{ignored}_{len(shape)}"
                add("NegativeLogLikelihoodLoss", label, loss)
                add("SoftmaxCrossEntropyLoss", label, lambda t, v, loss=loss: (*loss(t, v), 2))
for threshold in (None, 0.0, 0.4):
    for centre in (0, 1):
        def nms(t, v, s=threshold, c=centre):
            boxes = values([2, 6, 4], f32, 0, 1)
            return [boxes, values([2, 2, 6], f32, 0, 1, 1), ints(3), np.array([0.5], f32), *([np.array([s], f32)] if s is not None else [])], {"center_point_box": c}
        add("NonMaxSuppression", f"{threshold}_{centre}", nms)
add("NonMaxSuppression", "no_limit", lambda t, v: ([values([1, 6, 4], f32, 0, 1), values([1, 1, 6], f32, 0, 1, 1)], {}))
add("Dropout", "plain", lambda t, v: ([values([3, 4], t)], {"is_test": 1} if v < 7 else {}))
add("Dropout", "mask", lambda t, v: ([values([3, 4], t)], {}, 2) if v >= 10 else None)
add("Dropout", "ratio", lambda t, v: ([values([3, 4], t), np.array(0.25, f32), np.array(False)], {}, 2) if v >= 12 else None)
