"""Small ONNX models with open dimensions, as exporters write them: what each is open in, and what to feed it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Sizes = Mapping[str, int]
Feeds = dict[str, np.ndarray]
node = helper.make_node


@dataclass(frozen=True)
class DynamicModel:
    """One model.

    Attributes
    ----------
    name : str
    model : onnx.ModelProto
    limits : mapping from str to (int, int)
        The range of each open dimension.
    shapes : mapping from str to sequence of int or str
        Of the inputs.
    whole : mapping from str to int
        Inputs that are integers, and what they stay below.
    step : mapping from str to int
        Sizes are multiples of these, 1 where nothing is said.
    """

    name: str
    model: onnx.ModelProto
    limits: Mapping[str, tuple[int, int]]
    shapes: Mapping[str, Sequence[int | str]]
    whole: Mapping[str, int]
    step: Mapping[str, int]

    @property
    def dynamic(self) -> str:
        """As the command line takes it."""
        return ",".join(f"{name}={low}..{high}" for name, (low, high) in self.limits.items())

    def sizes(self, count: int, seed: int = 0) -> list[dict[str, int]]:
        """Draw sizes, the ends of the ranges among them."""
        rng = np.random.default_rng(seed)
        drawn = [{name: ends[place] for name, ends in self.limits.items()} for place in (0, 1)]
        while len(drawn) < count:
            drawn.append({name: int(rng.integers(low, high + 1)) for name, (low, high) in self.limits.items()})
        for sizes in drawn:
            for name, step in self.step.items():
                sizes[name] = max(sizes[name] // step, -(-self.limits[name][0] // step)) * step
        return drawn[:count]

    def feeds(self, sizes: Sizes, seed: int = 0) -> Feeds:
        """Draw inputs."""
        rng = np.random.default_rng(seed)
        found: Feeds = {}
        for name, shape in self.shapes.items():
            extents = [sizes[dim] if isinstance(dim, str) else dim for dim in shape]
            if name in self.whole:
                found[name] = rng.integers(0, self.whole[name], extents, "int64")
            else:
                found[name] = rng.standard_normal(extents).astype("float32")
        return found


def _weights(**shapes: Sequence[int]) -> list[onnx.TensorProto]:
    rng = np.random.default_rng(sum(map(ord, "".join(shapes))))
    return [
        numpy_helper.from_array(
            (rng.standard_normal(shape) / np.sqrt(max(1, int(np.prod(shape[1:]))))).astype("float32"), name
        )
        for name, shape in shapes.items()
    ]


def _integers(**values: Any) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(np.asarray(value, "int64"), name) for name, value in values.items()]


def make(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    shapes: Mapping[str, Sequence[int | str]],
    limits: Mapping[str, tuple[int, int]],
    constants: Sequence[onnx.TensorProto] = (),
    outputs: Sequence[str] = ("y",),
    whole: Mapping[str, int] | None = None,
    step: Mapping[str, int] | None = None,
    kinds: Mapping[str, int] | None = None,
) -> DynamicModel:
    """Make a model of nodes; outputs are float tensors unless ``kinds`` says otherwise."""
    whole = whole or {}
    inputs = [
        helper.make_tensor_value_info(key, TensorProto.INT64 if key in whole else TensorProto.FLOAT, list(shape))
        for key, shape in shapes.items()
    ]
    made = [helper.make_tensor_value_info(key, (kinds or {}).get(key, TensorProto.FLOAT), None) for key in outputs]
    graph = helper.make_graph(list(nodes), name, inputs, made, list(constants))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return DynamicModel(name, model, limits, shapes, whole, step or {})


def mlp() -> DynamicModel:
    nodes = [
        node("Gemm", ["x", "w", "b"], ["h"]),
        node("Relu", ["h"], ["r"]),
        node("MatMul", ["r", "v"], ["y"]),
    ]
    return make("mlp", nodes, {"x": ["n", 17]}, {"n": (1, 70)}, _weights(w=(17, 33), b=(33,), v=(33, 9)))


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
        *_weights(table=(50, 24), positions=(40, 24), wq=(24, 24), wk=(24, 24), wv=(24, 24), wo=(24, 24), gain=(24,)),
        *_weights(shift=(24,)),
        *_integers(zero=0, one=1, begin=[0], axis0=[0], heads=[3, 8], minus=[-1]),
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
        [*_weights(w=(6, 3, 3, 3), d=(6, 1, 3, 3), head=(6, 10)), *_integers(minus=[-1])],
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
        [*_weights(w1=(8, 3, 3, 3), w2=(8, 8, 3, 3), w3=(7, 16, 1, 1), w4=(7, 8, 1, 1)), *_integers(seven=[7, -1])],
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
        [scales, *_weights(w=(2, 3, 2, 2))], step={"h": 2, "w": 2},
    )  # fmt: skip


def recurrent(kind: str, gates: int) -> DynamicModel:
    """A recurrent layer in both directions, over any number of steps and sequences."""
    nodes = [node(kind, ["x", "w", "r"], ["y", "last"], hidden_size=5, direction="bidirectional")]
    return make(
        kind.lower(), nodes, {"x": ["steps", "n", 4]}, {"steps": (1, 12), "n": (1, 4)},
        _weights(w=(2, 5 * gates, 4), r=(2, 5 * gates, 5)), outputs=("y", "last"),
    )  # fmt: skip


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
    return make("branch_by_size", nodes, {"x": ["n", 3]}, {"n": (1, 200)}, [two, *_integers(hundred=100)])


def limited_reshape() -> DynamicModel:
    """A shape with the smaller of a size and a number in it."""
    nodes = [
        node("Shape", ["x"], ["s"], start=0, end=1),
        node("Min", ["s", "hundred"], ["rows"]),
        node("Concat", ["rows", "minus"], ["to"], axis=0),
        node("Reshape", ["x", "to"], ["y"]),
    ]
    return make("limited_reshape", nodes, {"x": ["n", 100]}, {"n": (1, 300)},
                _integers(hundred=[100], minus=[-1]), step={"n": 1})  # fmt: skip


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
    constants = _integers(
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
    return make("best_of", nodes, {"x": ["n", "m"]}, {"n": (1, 5), "m": (1, 30)}, _integers(five=[5]),
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
        *_integers(zero=0, one=1, two=2, ax1=[1]),
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
    constants = [*_weights(gain=(6,), shift=(6,)), *_integers(pads=[0, 1, 2, 0, 0, 1], times=[1, 2, 3], axes=[1])]
    return make("parts", nodes, {"x": ["n", 2, "m"], "index": ["n", 2, "k"]}, {"n": (1, 4), "m": (2, 24), "k": (1, 5)},
                constants, outputs=("y", "picked", "sums", "flat"), whole={"index": 2}, step={"m": 2})  # fmt: skip


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
                _weights(c1=(12, 10, 3), c2=(12, 12, 3), wq=(12, 12), wk=(12, 12), dw=(12, 1, 7),
                         pw=(12, 12, 1)))  # fmt: skip


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
    return make("repeated", nodes, {"x": ["n", 4]}, {"n": (1, 20)}, [decay, *_weights(begin=(4,))])


def two_inputs() -> DynamicModel:
    """Two inputs of the same open sizes, and two whose sizes the model wants to be equal."""
    nodes = [node("Add", ["a", "b"], ["s"]), node("MatMul", ["s", "c"], ["y"])]
    return make("two_inputs", nodes, {"a": ["n", "m"], "b": ["n", "m"], "c": ["k", 3]},
                {"n": (1, 6), "m": (2, 9), "k": (2, 9)})  # fmt: skip


MODELS: dict[str, Callable[[], DynamicModel]] = {
    "mlp": mlp,
    "attention_block": attention_block,
    "cache_attention": cache_attention,
    "cnn_by_shape": cnn_by_shape,
    "pyramid": pyramid,
    "upsampling": upsampling,
    "lstm": lambda: recurrent("LSTM", 4),
    "gru": lambda: recurrent("GRU", 3),
    "rnn": lambda: recurrent("RNN", 1),
    "found_places": found_places,
    "branch_by_size": branch_by_size,
    "slices": slices,
    "best_of": best_of,
    "counted": counted,
    "parts": parts,
    "conformer": conformer,
    "repeated": repeated,
}
"""By name; ``limited_reshape`` and ``two_inputs`` have sizes that go together, and tests of their own."""
