"""What graphs compute from the number of rows that a mask leaves, compared with onnxruntime for several numbers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tvm import relax, tirx

import tvm_ext
from tests.frontend.onnx.text import graph
from tvm_ext.errors import InputError
from tvm_ext.frontend.onnx.extents import Extents, extents_of
from tvm_ext.frontend.onnx.ops.extents import can_prove, normal

onnxruntime = pytest.importorskip("onnxruntime")

ROWS = 9
COUNTS = (0, 1, 2, 5, ROWS)
TABLE = np.random.default_rng(0).standard_normal((ROWS, 4)).astype("float32")
PRELUDE = (
    "mask = Greater(s, level) places = NonZero(mask) at = Transpose<perm = [1, 0]>(places) y = GatherND(b, at) "
    "shape = Shape(y) n = Gather(shape, zero) nu = Unsqueeze(n, first) "
)
CONSTANTS = {
    "level": np.float32(0),
    "half": np.float32(1.5),
    "zero": np.array(0),
    "one": np.array(1),
    "two": np.array(2),
    "three": np.array(3),
    "back": np.array(-1),
    "first": np.array([0]),
    "ones": np.array([1]),
    "twos": np.array([2]),
    "fours": np.array([4]),
    "rest": np.array([-1]),
    "pair": np.array([2, 2]),
    "end": np.array([2**63 - 1]),
    "begin": np.array([-(2**63)]),
    "row": TABLE[:1],
    "column": TABLE[0, :1],
    "yes": np.array(True),
}
SCALARS = {
    "int64": "o = Identity(n)",
    "int32": "o = Cast<to = 6>(n)",
    "float": "f = Cast<to = 1>(n) o = Sqrt(f)",
    "bool": "o = Greater(n, two)",
}


def sliding(count: int) -> dict[str, np.ndarray]:
    """Inputs of which ``count`` rows are left."""
    scores = -np.ones(ROWS, "float32")
    scores[np.random.default_rng(count).permutation(ROWS)[:count]] = 1
    return {"s": scores, "b": TABLE}


def model_of(body: str, outputs: str, opset: int = 17, prelude: str = PRELUDE) -> onnx.ModelProto:
    text = f"g (float[{ROWS}] s, float[{ROWS},4] b) => ({outputs}) {{ {prelude} {body} }}"
    model = graph(text, opset)
    made = {name for node in model.graph.node for name in node.input}
    made |= {
        name for node in model.graph.node for item in node.attribute for inner in item.g.node for name in inner.input
    }
    for name, array in CONSTANTS.items():
        if name in made:
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model


def check(model: onnx.ModelProto, counts: tuple[int, ...] = COUNTS) -> None:
    compiled = tvm_ext.compile(model, "native")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for count in counts:
        expected = session.run(None, sliding(count))
        for value, wanted in zip(compiled.run(sliding(count)).values(), expected, strict=True):
            assert (value.shape, value.dtype) == (wanted.shape, wanted.dtype), count
            np.testing.assert_allclose(value, wanted, 1e-5, 1e-6, err_msg=str(count))


@pytest.mark.parametrize("dtype", SCALARS)
def test_a_count_is_an_output(dtype: str) -> None:
    check(model_of(SCALARS[dtype], f"{dtype} o"))


def test_arithmetic_of_counts() -> None:
    check(
        model_of(
            "a = Mul(n, three) d = Sub(a, two) q = Div(d, two) r = Mod(d, three) e = Abs(d) h = Max(d, two, n) "
            "l = Min(d, two) m = Neg(d) p = Pow(n, two) c = Add(n, one) v = Mod(three, c) w = Div(three, c) "
            "all = Concat<axis = 0>(nu, rest, nu) z = Size(y) k = Clip(n, one, three)",
            "int64 a, int64 d, int64 q, int64 r, int64 e, int64 h, int64 l, int64 m, int64 p, int64 v, int64 w, "
            "int64[3] all, int64 z, int64 k, int64[2] shape, int64[1] nu",
        )
    )


def test_comparisons_of_counts() -> None:
    check(
        model_of(
            "e = Equal(n, two) g = Greater(n, zero) l = Less(n, three) h = GreaterOrEqual(n, two) "
            "k = LessOrEqual(n, two) a = And(g, l) o = Or(g, l) x = Xor(g, l) m = Not(e) w = Where(g, n, back) "
            "c = Where(yes, n, two) never = Equal(n, back)",
            "bool e, bool g, bool l, bool h, bool k, bool a, bool o, bool x, bool m, int64 w, int64 c, bool never",
        )
    )


def test_a_mean_over_what_is_left() -> None:
    check(
        model_of(
            "f = Cast<to = 1>(n) t = ReduceSum(y, first) o = Div(t, f) z = Size(y) u = CastLike(z, level) "
            "a = ReduceSum<keepdims = 0>(y) m = Div(a, u)",
            "float[1,4] o, float m",
        )
    )


def test_ranges_of_counts() -> None:
    check(
        model_of(
            "a = Range(zero, n, one) b1 = Range(n, three, back) c = Range(two, n, one) d = Range(zero, n, two) "
            "f = Cast<to = 1>(n) e = Range(level, f, half) i = Cast<to = 6>(n) j = Cast<to = 6>(zero) "
            "k = Cast<to = 6>(one) h = Range(j, i, k)",
            "int64[a] a, int64[b] b1, int64[c] c, int64[d] d, float[e] e, int32[h] h",
        )
    )


def test_a_range_is_as_long_as_what_it_counts() -> None:
    check(
        model_of(
            "r = Range(zero, n, one) f = Cast<to = 1>(r) c = Unsqueeze(f, ones) o = Mul(y, c) l = Sub(n, one) "
            "v = Sub(l, r) t = Gather(y, v)",
            "float[k,4] o, float[k,4] t",
        )
    )


def test_whole_ranges_of_other_types_are_as_long_as_what_they_count() -> None:
    check(
        model_of(
            "f = Cast<to = 1>(n) g = Cast<to = 1>(zero) h = Cast<to = 1>(one) r = Range(g, f, h) "
            "c = Unsqueeze(r, ones) o = Mul(y, c) i = Cast<to = 6>(n) j = Cast<to = 6>(zero) "
            "k = Cast<to = 6>(one) w = Range(j, i, k) "
            "q = Cast<to = 1>(w) d = Unsqueeze(q, ones) t = Mul(y, d)",
            "float[k,4] o, float[k,4] t",
        )
    )


def test_shapes_of_counts() -> None:
    check(
        model_of(
            "t = Concat<axis = 0>(nu, pair) a = Reshape(y, t) u = Concat<axis = 0>(rest, nu) c = Reshape(y, u) "
            "d = Expand(row, shape) e = Add(d, y) m = Mul(shape, pair) f = ConstantOfShape(m) "
            "p = ReduceProd(shape) h = Reshape(y, p)",
            "float[k,2,2] a, float[a,b] c, float[k,4] e, float[c,8] f, float[d] h",
        )
    )


def test_shapes_that_went_through_tensors() -> None:
    check(
        model_of(
            "f = Cast<to = 1>(n) q = Sqrt(f) i = Floor(q) k = Cast<to = 7>(i) u = Unsqueeze(k, first) "
            "c = ConstantOfShape(u) v = Cast<to = 6>(shape) w = Cast<to = 7>(v) a = Reshape(y, w) "
            "x, z = Split(shape) p = Mul(x, z) h = Reshape(y, p)",
            "float[k] c, float[n,4] a, float[m] h",
            opset=13,
        )
    )


def test_slices_between_counts() -> None:
    check(
        model_of(
            "m = Neg(nu) l = Sub(nu, ones) h = Div(nu, twos) a = Slice(y, first, l) c = Slice(y, h, end) "
            "d = Slice(b, m, end) e = Slice(b, first, m) f = Slice(b, first, nu, ones) k = Slice(y, first, rest) "
            "o = Slice(y, twos, end)",
            "float[a,4] a, float[c,4] c, float[d,4] d, float[e,4] e, float[9,f] f, float[k,4] k, float[o,4] o",
        )
    )


def test_a_slice_of_what_was_there_before_the_count() -> None:
    check(model_of("o = Slice(a, first, nu)", "float[k,4] o", prelude=f"a = Neg(b) {PRELUDE}"))


def test_slices_in_steps() -> None:
    check(
        model_of(
            "a = Slice(y, first, end, first, twos) c = Slice(y, rest, begin, first, rest) "
            "d = Slice(b, nu, begin, first, rest)",
            "float[a,4] a, float[c,4] c, float[d,4] d",
        )
    )


def test_a_count_is_an_index() -> None:
    check(model_of("l = Sub(n, one) o = Gather(y, l) p = Gather(b, l)", "float[4] o, float[4] p"), COUNTS[1:])


def test_so_many_of_the_largest() -> None:
    check(
        model_of(
            "k = Min(n, two) u = Unsqueeze(k, first) v, i = TopK<axis = 0>(y, u) w, j = TopK<largest = 0>(s, nu)",
            "float[k,4] v, int64[k,4] i, float[n] w, int64[n] j",
        )
    )


def test_a_branch_for_what_is_empty() -> None:
    check(
        model_of(
            "e = Equal(n, zero) o, c = If(e) <then_branch = t () => (float[1,4] p, int64 i) "
            "{ p = Identity(row) i = Neg(n) }, else_branch = f () => (float[1,4] q, int64 j) "
            "{ q = ReduceMax<axes = [0]>(y) j = Add(n, one) }>",
            "float[1,4] o, int64 c",
        )
    )


def test_so_many_iterations() -> None:
    check(
        model_of(
            "o, c = Loop(n, yes, column, n) <body = r (int64 i, bool g, float[1] v, int64 a) => "
            "(bool h, float[1] w, int64 d) { h = Identity(g) w = Add(v, v) d = Add(a, n) }>",
            "float[1] o, int64 c",
        )
    )


@pytest.mark.parametrize(
    "rows",
    [
        "z = Compress<axis = 0>(b, mask)",
        "r = Round(b) z = Unique(r)",
        "i = Squeeze(at, ones) z = Gather(b, i)",
    ],
)
def test_whatever_leaves_the_rows(rows: str) -> None:
    check(
        model_of(
            f"{rows} t = Shape(z) u = Slice(t, first, ones) m = Squeeze(u) f = Cast<to = 1>(m) l = Sub(m, one) "
            "o = Range(zero, m, one) e = Equal(m, two)",
            "float f, int64 l, int64[k] o, bool e",
        )
    )


@pytest.mark.parametrize("shift", [0.0, -0.5])
def test_boxes_that_are_kept_are_counted(shift: float) -> None:
    """TVM's type of the boxes says how many there may be."""
    random = np.random.default_rng(0)
    feeds = {
        "boxes": random.random((1, ROWS, 4)).astype("float32"),
        "scores": (random.random((1, 2, ROWS)) + shift).astype("float32"),
    }
    model = graph(
        f"g (float[1,{ROWS},4] boxes, float[1,2,{ROWS}] scores) => (int64[k,3] sel, float f, int64[k] r, int64[k,1] c) "
        "{ sel = NonMaxSuppression(boxes, scores, most, overlap) t = Shape(sel) n = Gather(t, zero) "
        "f = Cast<to = 1>(n) r = Range(zero, n, one) c = Gather<axis = 1>(sel, ones) }",
        13,
        most=np.array([3]),
        overlap=np.array([0.5], "float32"),
        zero=np.array(0),
        one=np.array(1),
        ones=np.array([1]),
    )
    found = tvm_ext.compile(model, "native").run(feeds)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for value, wanted in zip(found.values(), session.run(None, feeds), strict=True):
        assert value.dtype == wanted.dtype
        np.testing.assert_array_equal(value, wanted)


def test_axes_are_attributes() -> None:
    check(
        model_of(
            "i = Squeeze<axes = [1]>(at) y = Gather(b, i) t = Shape(y) u = Slice<starts = [0], ends = [1]>(t) "
            "m = Squeeze<axes = [0]>(u) v = Unsqueeze<axes = [0]>(m) c = ConstantOfShape(v) e = Equal(m, two)",
            "float[k] c, bool e",
            opset=9,
            prelude=PRELUDE[: PRELUDE.index("y =")],
        )
    )


def test_only_vectors_of_int64_are_extents() -> None:
    n = tirx.Var("n", "int64")
    assert extents_of(n) == Extents((n,), True)
    assert extents_of(relax.ShapeExpr([n])).scalar is False
    assert extents_of(relax.const(np.zeros((1, 1), "int64"), "int64")) is None
    assert extents_of(relax.const(np.zeros(1, "int32"), "int32")) is None
    assert extents_of(None) is None


def test_extents_are_not_negative() -> None:
    n = tirx.Var("n", "int64")
    assert can_prove(n >= 0)
    assert can_prove(tirx.NE(n, tirx.IntImm("int64", -1)))
    assert not can_prove(n >= 1)
    assert not can_prove(tirx.NE(n, tirx.IntImm("int64", 5)))
    assert normal(tirx.max(n, tirx.IntImm("int64", 0))).same_as(n)


RESHAPED = """<ir_version: 8, opset_import: ["" : 17]>
g (float[6] x, int64[2] shape) => (float[a,b] y) { r = Relu(x) q = Reshape(r, shape) y = Add(q, q) }"""


@pytest.mark.parametrize("shape", [(3, 2), (2, -1), (0, 1), (-1, 6)])
def test_a_computed_shape(shape: tuple[int, int]) -> None:
    model = onnx.parser.parse_model(RESHAPED)
    feeds = {"x": np.arange(6, dtype="float32"), "shape": np.array(shape)}
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    (found,) = tvm_ext.compile(model).run(feeds).values()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("shape", "count"), [((4, 2), 8), ((1, 2), 2), ((-1, 4), 4), ((7, 1), 7)])
def test_a_computed_shape_of_another_size_is_refused(shape: tuple[int, int], count: int) -> None:
    """Nothing is read behind the tensor, nor left out."""
    compiled = tvm_ext.compile(onnx.parser.parse_model(RESHAPED))
    with pytest.raises(InputError, match=f"has 6 elements along axis 0 where others make it {count}; give values"):
        compiled.run({"x": np.arange(6, dtype="float32"), "shape": np.array(shape)})


def test_known_extents_beside_an_open_one() -> None:
    """As exporters write attention: a shape is of the batch, and of numbers that come of a shape, too."""
    model = graph(
        "g (float[n,4] x) => (float[n,2,3] y) { s = Shape(x) n = Slice(s, places, ones) "
        "r = Concat<axis = 0>(n, ones, ones) e = Expand(row, r) t = Shape(e) six = Slice(t, twos, threes) "
        "two = Div(six, threes) three = Div(six, twos) known = Concat<axis = 0>(two, three) "
        "shape = Concat<axis = 0>(n, known) y = Reshape(e, shape) }",
        row=TABLE[:2, :3].reshape(1, 1, 6), places=np.array([0]), ones=np.array([1]), twos=np.array([2]),
        threes=np.array([3]),
    )  # fmt: skip
    compiled = tvm_ext.compile(model, dynamic={"n": (1, 8)})
    for batch in (1, 3):
        x = np.zeros((batch, 4), "float32")
        (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
        np.testing.assert_array_equal(compiled.run({"x": x})["y"], expected)
