"""Models of operators whose results depend on an open dimension: parts, places, branches, loops."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.shapes.dynamic_model import DynamicModel, integers, make, node, weights


def found_places() -> DynamicModel:
    """Elements above zero: how many there are only a run tells."""
    nodes = [
        node("Greater", ["x", "nought"], ["above"]),
        node("NonZero", ["above"], ["places"]),
        node("Transpose", ["places"], ["rows"]),
        node("GatherND", ["x", "rows"], ["values"]),
        node("Mul", ["values", "values"], ["y"]),
    ]
    nought = numpy_helper.from_array(np.float32(0), "nought")
    return make("found_places", nodes, {"x": ["n", 5]}, {"n": (1, 20)}, [nought], outputs=("y", "places"),
                kinds={"places": TensorProto.INT64})  # fmt: skip


def branch_by_size() -> DynamicModel:
    """Another branch for long inputs: whoever imports the model for short ones sees one of them."""
    then = helper.make_graph(
        [node("Mul", ["x", "two"], ["t"])],
        "then",
        [],
        [helper.make_tensor_value_info("t", TensorProto.FLOAT, ["n", 3])],
    )
    other = helper.make_graph(
        [node("Neg", ["x"], ["e"])], "else", [], [helper.make_tensor_value_info("e", TensorProto.FLOAT, ["n", 3])]
    )
    nodes = [
        node("Shape", ["x"], ["s"], start=0, end=1),
        node("Squeeze", ["s"], ["count"]),
        node("Greater", ["count", "hundred"], ["long"]),
        node("If", ["long"], ["y"], then_branch=then, else_branch=other),
    ]
    two = numpy_helper.from_array(np.float32(2), "two")
    return make("branch_by_size", nodes, {"x": ["n", 3]}, {"n": (1, 200)}, [two, *integers(hundred=100)])


def one_rate() -> DynamicModel:
    """Branches for two rates, of which only one can run with the columns that there are."""
    then = helper.make_graph(
        [node("Unsqueeze", ["x", "axis"], ["t1"]), node("Conv", ["t1", "one"], ["t"])],
        "then",
        [],
        [helper.make_empty_tensor_value_info("t")],
    )
    other = helper.make_graph(
        [node("Unsqueeze", ["x", "axis"], ["e1"]), node("Conv", ["e1", "two"], ["e2"]), node("Neg", ["e2"], ["e"])],
        "else",
        [],
        [helper.make_empty_tensor_value_info("e")],
    )
    nodes = [
        node("Less", ["rate", "thousand"], ["slow"]),
        node("If", ["slow"], ["y1"], then_branch=then, else_branch=other),
        node("Relu", ["y1"], ["y"]),
    ]
    constants = [*integers(thousand=1000, axis=[1]), *weights(one=[4, 1, 3], two=[4, 2, 3])]
    return make("one_rate", nodes, {"x": ["n", 12], "rate": []}, {"n": (1, 9)}, constants, whole={"rate": 1000})


def limited_reshape() -> DynamicModel:
    """A shape with the smaller of a size and a number in it."""
    nodes = [
        node("Shape", ["x"], ["s"], start=0, end=1),
        node("Min", ["s", "hundred"], ["rows"]),
        node("Concat", ["rows", "minus"], ["to"], axis=0),
        node("Reshape", ["x", "to"], ["y"]),
    ]
    return make("limited_reshape", nodes, {"x": ["n", 100]}, {"n": (1, 300)},
                integers(hundred=[100], minus=[-1]), step={"n": 1})  # fmt: skip


def slices() -> DynamicModel:
    """Parts by constants: from the end, every second one, with a fixed end that may be behind the last one."""
    nodes = [
        node("Slice", ["x", "s1", "e1", "ax"], ["front"]),
        node("Slice", ["x", "s2", "e2", "ax"], ["back"]),
        node("Slice", ["x", "s3", "e2", "ax", "pace"], ["second"]),
        node("Slice", ["x", "s3", "e4", "ax"], ["ten"]),
        node("Slice", ["x", "last", "least", "ax", "down"], ["turned"]),
        node("ReduceMean", ["ten"], ["mean"], axes=[1], keepdims=1),
        node("Sub", ["turned", "mean"], ["y"]),
    ]
    many = 2**62
    constants = integers(
        s1=[0], e1=[-2], s2=[-3], e2=[many], s3=[0], e4=[10], ax=[1], pace=[2], last=[-1], least=[-many], down=[-1]
    )
    return make("slices", nodes, {"x": [2, "n"]}, {"n": (3, 30)}, constants,
                outputs=("y", "front", "back", "second", "ten"))  # fmt: skip


def best_of() -> DynamicModel:
    """The five largest, or all where there are fewer, and where they are."""
    nodes = [
        node("Shape", ["x"], ["s"], start=1, end=2),
        node("Min", ["s", "five"], ["k"]),
        node("TopK", ["x", "k"], ["y", "places"], axis=1),
        node("ArgMax", ["x"], ["best"], axis=1, keepdims=0),
    ]
    return make("best_of", nodes, {"x": ["n", "m"]}, {"n": (1, 5), "m": (1, 30)}, integers(five=[5]),
                outputs=("y", "places", "best"),
                kinds={"places": TensorProto.INT64, "best": TensorProto.INT64})  # fmt: skip


def counted() -> DynamicModel:
    """Positions by ``Range``, masks by comparison, a triangle, running sums, halves."""
    nodes = [
        node("Shape", ["x"], ["s"], start=1, end=2),
        node("Squeeze", ["s"], ["length"]),
        node("Range", ["zero", "length", "one"], ["places"]),
        node("Unsqueeze", ["places", "ax1"], ["column"]),
        node("GreaterOrEqual", ["column", "places"], ["seen"]),
        node("Where", ["seen", "nought", "low"], ["mask"]),
        node("Unsqueeze", ["x", "ax1"], ["rows"]),
        node("Add", ["rows", "mask"], ["scores"]),
        node("Softmax", ["scores"], ["shares"]),
        node("CumSum", ["shares", "two"], ["y"]),
        node("Cast", ["places"], ["floats"], to=TensorProto.FLOAT),
        node("Mul", ["x", "floats"], ["z"]),
        node("Concat", ["s", "s"], ["square"], axis=0),
        node("ConstantOfShape", ["square"], ["zeros"]),
        node("Expand", ["floats", "square"], ["wide"]),
        node("Add", ["zeros", "wide"], ["e"]),
        node("Trilu", ["e"], ["lower"], upper=0),
    ]
    constants = [
        *integers(zero=0, one=1, two=2, ax1=[1]),
        numpy_helper.from_array(np.float32(0), "nought"),
        numpy_helper.from_array(np.float32(-1e4), "low"),
    ]
    return make(
        "counted", nodes, {"x": ["n", "m"]}, {"n": (1, 4), "m": (1, 20)}, constants, outputs=("y", "z", "lower")
    )


def parts() -> DynamicModel:
    """Split, padded, tiled, gathered, normalised along open axes."""
    nodes = [
        node("Split", ["x"], ["a", "b"], axis=2),
        node("Sigmoid", ["b"], ["gate"]),
        node("Mul", ["a", "gate"], ["glu"]),
        node("Pad", ["glu", "pads"], ["padded"]),
        node("Tile", ["padded", "times"], ["tiled"]),
        node("InstanceNormalization", ["tiled", "gain", "shift"], ["y"]),
        node("GatherElements", ["x", "index"], ["picked"], axis=2),
        node("ReduceSum", ["x", "axes"], ["sums"], keepdims=0),
        node("Flatten", ["x"], ["flat"], axis=1),
    ]
    constants = [*weights(gain=(6,), shift=(6,)), *integers(pads=[0, 1, 2, 0, 0, 1], times=[1, 2, 3], axes=[1])]
    return make("parts", nodes, {"x": ["n", 2, "m"], "index": ["n", 2, "k"]}, {"n": (1, 4), "m": (2, 24), "k": (1, 5)},
                constants, outputs=("y", "picked", "sums", "flat"), whole={"index": 2}, step={"m": 2})  # fmt: skip


def repeated() -> DynamicModel:
    """A ``Loop`` as often as the input has rows, that carries a vector."""
    body = helper.make_graph(
        [
            node("Gather", ["x", "i"], ["row"], axis=0),
            node("Mul", ["state", "decay"], ["kept"]),
            node("Add", ["kept", "row"], ["next"]),
            node("Identity", ["go"], ["on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [4]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [4]),
        ],
    )
    nodes = [
        node("Shape", ["x"], ["s"], start=0, end=1),
        node("Squeeze", ["s"], ["count"]),
        node("Loop", ["count", "", "begin"], ["y"], body=body),
    ]
    decay = numpy_helper.from_array(np.float32(0.9), "decay")
    return make("repeated", nodes, {"x": ["n", 4]}, {"n": (1, 20)}, [decay, *weights(begin=(4,))])


def scanned() -> DynamicModel:
    """A ``Scan`` over the rows of the input, that stacks what it carries."""
    row, state = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("row", "state"))
    after = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("next", "out")]
    steps = [node("Add", ["state", "row"], ["next"]), node("Identity", ["next"], ["out"])]
    body = helper.make_graph(steps, "body", [state, row], after)
    scan = node("Scan", ["begin", "x"], ["last", "y"], body=body, num_scan_inputs=1)
    return make("scanned", [scan], {"x": ["n", 3]}, {"n": (1, 33)}, weights(begin=(3,)), outputs=("last", "y"))


def two_inputs() -> DynamicModel:
    """Two inputs of the same open sizes, and two whose sizes the model wants to be equal."""
    nodes = [node("Add", ["a", "b"], ["s"]), node("MatMul", ["s", "c"], ["y"])]
    return make("two_inputs", nodes, {"a": ["n", "m"], "b": ["n", "m"], "c": ["k", 3]},
                {"n": (1, 6), "m": (2, 9), "k": (2, 9)})  # fmt: skip
