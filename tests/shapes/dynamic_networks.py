"""Small networks with open dimensions, as exporters write them."""

from __future__ import annotations

import numpy as np
from onnx import numpy_helper

from tests.shapes.dynamic_model import DynamicModel, integers, make, node, weights


def mlp() -> DynamicModel:
    nodes = [
        node("Gemm", ["x", "w", "b"], ["h"]),
        node("Relu", ["h"], ["r"]),
        node("MatMul", ["r", "v"], ["y"]),
    ]
    return make("mlp", nodes, {"x": ["n", 17]}, {"n": (1, 70)}, weights(w=(17, 33), b=(33,), v=(33, 9)))


def attention_block() -> DynamicModel:
    """Token ids to logits: embedding, positions by the length, attention whose heads are split by computed shapes."""
    nodes = [
        node("Shape", ["ids"], ["shape"]),
        node("Gather", ["shape", "zero"], ["batch"]),
        node("Gather", ["shape", "one"], ["length"]),
        node("Gather", ["table", "ids"], ["words"]),
        node("Slice", ["positions", "begin", "end_length", "axis0"], ["places"]),
        node("Add", ["words", "places"], ["x"]),
        node("Unsqueeze", ["length", "axis0"], ["end_length"]),
        node("Unsqueeze", ["batch", "axis0"], ["batch1"]),
        node("MatMul", ["x", "wq"], ["q0"]), node("MatMul", ["x", "wk"], ["k0"]), node("MatMul", ["x", "wv"], ["v0"]),
        node("Concat", ["batch1", "end_length", "heads"], ["split"], axis=0),
        node("Reshape", ["q0", "split"], ["q1"]), node("Reshape", ["k0", "split"], ["k1"]),
        node("Reshape", ["v0", "split"], ["v1"]),
        node("Transpose", ["q1"], ["q"], perm=[0, 2, 1, 3]), node("Transpose", ["k1"], ["k"], perm=[0, 2, 3, 1]),
        node("Transpose", ["v1"], ["v"], perm=[0, 2, 1, 3]),
        node("MatMul", ["q", "k"], ["scores"]), node("Mul", ["scores", "scale"], ["scaled"]),
        node("Softmax", ["scaled"], ["shares"], axis=-1), node("MatMul", ["shares", "v"], ["mixed"]),
        node("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]),
        node("Concat", ["batch1", "end_length", "minus"], ["join"], axis=0),
        node("Reshape", ["back", "join"], ["joined"]), node("MatMul", ["joined", "wo"], ["out"]),
        node("Add", ["out", "x"], ["residual"]),
        node("LayerNormalization", ["residual", "gain", "shift"], ["y"], axis=-1),
    ]  # fmt: skip
    constants = [
        *weights(table=(50, 24), positions=(40, 24), wq=(24, 24), wk=(24, 24), wv=(24, 24), wo=(24, 24), gain=(24,)),
        *weights(shift=(24,)),
        *integers(zero=0, one=1, begin=[0], axis0=[0], heads=[3, 8], minus=[-1]),
        numpy_helper.from_array(np.float32(8**-0.5), "scale"),
    ]
    return make(
        "attention_block", nodes, {"ids": ["batch", "seq"]}, {"batch": (1, 5), "seq": (1, 40)}, constants,
        whole={"ids": 50},
    )  # fmt: skip


def cache_attention() -> DynamicModel:
    """Attention over a cache: two lengths, whose sum is the length of the keys."""
    nodes = [
        node("Concat", ["past", "new"], ["keys"], axis=1),
        node("Transpose", ["keys"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["new", "kt"], ["scores"]),
        node("Softmax", ["scores"], ["shares"], axis=-1),
        node("MatMul", ["shares", "keys"], ["y"]),
    ]
    return make(
        "cache_attention",
        nodes,
        {"past": ["batch", "past", 8], "new": ["batch", "seq", 8]},
        {"batch": (1, 3), "past": (0, 20), "seq": (1, 9)},
        outputs=("y", "keys"),
    )


def cnn_by_shape() -> DynamicModel:
    """Images of any number and size to a vector each; the shape of the vector is computed."""
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"]),
        node("MaxPool", ["b"], ["c"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Conv", ["c", "d"], ["e"], strides=[2, 2], pads=[1, 1, 1, 1], group=6),
        node("GlobalAveragePool", ["e"], ["f"]),
        node("Shape", ["f"], ["s"], start=0, end=1),
        node("Concat", ["s", "minus"], ["t"], axis=0),
        node("Reshape", ["f", "t"], ["g"]),
        node("Gemm", ["g", "head"], ["y"]),
    ]
    return make(
        "cnn_by_shape", nodes, {"x": ["n", 3, "h", "w"]}, {"n": (1, 4), "h": (5, 40), "w": (5, 40)},
        [*weights(w=(6, 3, 3, 3), d=(6, 1, 3, 3), head=(6, 10)), *integers(minus=[-1])],
    )  # fmt: skip


def pyramid() -> DynamicModel:
    """A detector's neck and heads: upsampled to the size of another map, joined, all places in one list."""
    nodes = [
        node("Conv", ["x", "w1"], ["p1"], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Conv", ["p1", "w2"], ["p2"], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Shape", ["p1"], ["size"], start=2, end=4),
        node("Shape", ["p2"], ["front"], start=0, end=2),
        node("Concat", ["front", "size"], ["to"], axis=0),
        node("Resize", ["p2", "", "", "to"], ["up"], mode="nearest", nearest_mode="floor",
             coordinate_transformation_mode="asymmetric"),
        node("Concat", ["up", "p1"], ["joined"], axis=1),
        node("Conv", ["joined", "w3"], ["h1"]), node("Conv", ["p2", "w4"], ["h2"]),
        node("Shape", ["x"], ["images"], start=0, end=1),
        node("Concat", ["images", "seven"], ["flat"], axis=0),
        node("Reshape", ["h1", "flat"], ["l1"]), node("Reshape", ["h2", "flat"], ["l2"]),
        node("Concat", ["l1", "l2"], ["all"], axis=2), node("Transpose", ["all"], ["rows"], perm=[0, 2, 1]),
        node("Sigmoid", ["rows"], ["y"]),
    ]  # fmt: skip
    return make(
        "pyramid", nodes, {"x": ["n", 3, "h", "w"]}, {"n": (1, 2), "h": (8, 64), "w": (8, 64)},
        [*weights(w1=(8, 3, 3, 3), w2=(8, 8, 3, 3), w3=(7, 16, 1, 1), w4=(7, 8, 1, 1)), *integers(seven=[7, -1])],
    )  # fmt: skip


def upsampling() -> DynamicModel:
    """Twice as large by neighbours and by interpolation, with skip connections that fit even sizes only."""
    scales = numpy_helper.from_array(np.array([1, 1, 2, 2], "float32"), "twice")
    nodes = [
        node("MaxPool", ["x"], ["half"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Resize", ["half", "", "twice"], ["near"], mode="nearest"),
        node("Resize", ["half", "", "twice"], ["smooth"], mode="linear", coordinate_transformation_mode="half_pixel"),
        node("ConvTranspose", ["half", "w"], ["spread"], strides=[2, 2]),
        node("Concat", ["x", "near", "smooth", "spread"], ["y"], axis=1),
    ]
    return make(
        "upsampling", nodes, {"x": ["n", 2, "h", "w"]}, {"n": (1, 3), "h": (2, 30), "w": (2, 30)},
        [scales, *weights(w=(2, 3, 2, 2))], step={"h": 2, "w": 2},
    )  # fmt: skip


def recurrent(kind: str, gates: int) -> DynamicModel:
    """A recurrent layer in both directions, over any number of steps and sequences."""
    nodes = [node(kind, ["x", "w", "r"], ["y", "last"], hidden_size=5, direction="bidirectional")]
    return make(
        kind.lower(), nodes, {"x": ["steps", "n", 4]}, {"steps": (1, 12), "n": (1, 4)},
        weights(w=(2, 5 * gates, 4), r=(2, 5 * gates, 5)), outputs=("y", "last"),
    )  # fmt: skip


def conformer() -> DynamicModel:
    """Speech: frames thinned out by convolutions, attention, a depthwise convolution along time."""
    nodes = [
        node("Transpose", ["x"], ["channels"], perm=[0, 2, 1]),
        node("Conv", ["channels", "c1"], ["t1"], strides=[2], pads=[1, 1]), node("Relu", ["t1"], ["t2"]),
        node("Conv", ["t2", "c2"], ["t3"], strides=[2], pads=[1, 1]),
        node("Transpose", ["t3"], ["frames"], perm=[0, 2, 1]),
        node("MatMul", ["frames", "wq"], ["q"]), node("MatMul", ["frames", "wk"], ["k"]),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]), node("MatMul", ["q", "kt"], ["scores"]),
        node("Softmax", ["scores"], ["shares"]), node("MatMul", ["shares", "frames"], ["mixed"]),
        node("Add", ["mixed", "frames"], ["r1"]),
        node("Transpose", ["r1"], ["r2"], perm=[0, 2, 1]),
        node("Conv", ["r2", "dw"], ["r3"], pads=[3, 3], group=12), node("Sigmoid", ["r3"], ["r4"]),
        node("Mul", ["r3", "r4"], ["r5"]), node("Conv", ["r5", "pw"], ["r6"]),
        node("Transpose", ["r6"], ["y"], perm=[0, 2, 1]),
    ]  # fmt: skip
    return make("conformer", nodes, {"x": ["n", "time", 10]}, {"n": (1, 3), "time": (4, 90)},
                weights(c1=(12, 10, 3), c2=(12, 12, 3), wq=(12, 12), wk=(12, 12), dw=(12, 1, 7),
                         pw=(12, 12, 1)))  # fmt: skip
