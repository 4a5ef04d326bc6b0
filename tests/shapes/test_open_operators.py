"""Operators on open axes give what onnxruntime gives where it depends on the sizes of a run how they work."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import onnx
import pytest

import tvm_ext
from tests.frontend.onnx.text import graph
from tvm_ext.dynamic import open_dimensions
from tvm_ext.errors import InputError, UnsupportedOperatorError
from tvm_ext.frontend.onnx.operator_graph import operator_graph
from tvm_ext.shapes.propagate import propagate

onnxruntime = pytest.importorskip("onnxruntime")

KERNEL = np.random.default_rng(0).standard_normal((5, 3, 3, 3)).astype("float32")


def check(model: onnx.ModelProto, *shapes: Mapping[str, tuple[int, ...]], dynamic: str = "*") -> None:
    """Compare for inputs of as many shapes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="a schedule rule failed")
        compiled = tvm_ext.compile(model, dynamic=dynamic)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for seed, given in enumerate(shapes):
        rng = np.random.default_rng(seed)
        feeds = {name: rng.standard_normal(shape).astype("float32") for name, shape in given.items()}
        for want, got in zip(session.run(None, feeds), compiled.run(feeds).values(), strict=True):
            assert (want.shape, want.dtype) == (got.shape, got.dtype), given
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=str(given))


def test_expanding_repeats_what_turns_out_to_be_one_element() -> None:
    model = graph(
        "g (float[n,1] a, float[m,k] b) => (float[p,q] y, float[r,q] z) "
        "{ shape = Shape(b) e = Expand(a, shape) y = Neg(e) z = Softmax(e) }"
    )
    shapes = [{"a": (n, 1), "b": (m, k)} for n, m, k in ((4, 4, 3), (1, 4, 3), (4, 1, 3), (1, 1, 1), (1, 17, 33))]
    check(model, *shapes)
    compiled = tvm_ext.compile(model, dynamic="*")
    with pytest.raises(InputError, match="n == m or n == 1 or m == 1"):
        compiled.run({"a": np.zeros((4, 1), "float32"), "b": np.zeros((3, 3), "float32")})


def test_expanding_what_may_be_empty() -> None:
    model = graph(
        "g (float[n,2] a, float[m,1] b) => (float[p,2] y) { shape = Shape(b) e = Expand(a, shape) y = Neg(e) }"
    )
    pairs = ((1, 4), (4, 1), (0, 1), (1, 0), (0, 0), (3, 3))
    check(model, *({"a": (n, 2), "b": (m, 1)} for n, m in pairs), dynamic="n=0..,m=0..")


def test_expanding_to_numbers() -> None:
    model = graph(
        "g (float[n,3] a) => (float[2,p,3] y, float[4,3] z) { y = Expand(a, wide) z = Expand(a, four) }",
        wide=np.array([2, 1, 1]),
        four=np.array([4, 3]),
    )
    check(model, {"a": (1, 3)}, {"a": (4, 3)})


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool", "AveragePool<count_include_pad = 1>"])
def test_pooling_rounds_up_behind_a_convolution_with_strides(kind: str) -> None:
    pool = "kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1"
    call = f"{kind[:-1]}, {pool}>" if kind.endswith(">") else f"{kind}<{pool}>"
    model = graph(
        "g (float[n,3,h,w] x) => (float[n,5,p,q] y) "
        f"{{ a = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, k) y = {call}(a) }}",
        k=KERNEL,
    )
    check(model, *({"x": (1, 3, *size)} for size in ((7, 9), (17, 31), (8, 8), (10, 12), (5, 14))))


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
def test_pooling_rounds_up_with_steps_beyond_its_window_or_padding(operator: str) -> None:
    outer = "kernel_shape = [1, 3], strides = [3, 2], pads = [0, 1, 0, 1], ceil_mode = 1"
    inner = "kernel_shape = [2, 2], strides = [1, 3], ceil_mode = 1"
    places = ""
    if operator == "MaxPool":
        inner, places = f"{inner}, dilations = [1, 2]", ", i"
    model = graph(
        f"g (float[n,3,h,w] x) => (float[n,3,p,q] y, float[n,3,r,s] z{places and ', int64[n,3,r,s] i'}) "
        f"{{ y = {operator}<{outer}>(x) z{places} = {operator}<{inner}>(x) }}"
    )
    check(model, *({"x": (1, 3, *size)} for size in ((7, 9), (6, 5), (8, 8), (10, 12), (5, 14))), dynamic="h=3..,w=5..")


def test_padding_that_counts_where_windows_are_rounded_up() -> None:
    attributes = "strides = [2, 1], ceil_mode = 1, count_include_pad = 1"
    text = "g (float[n,3,h,w] x) => (float[n,3,p,q] y) {{ y = AveragePool<kernel_shape = {}, {}, pads = {}>(x) }}"
    model = graph(text.format([3, 3], attributes, [1, 2, 1, 1]))
    check(model, *({"x": (2, 3, *size)} for size in ((3, 3), (4, 7), (7, 8), (16, 17), (33, 1))))
    with pytest.raises(
        UnsupportedOperatorError, match="along axis 2 the last window of an open size may begin in the padding"
    ):
        tvm_ext.import_model(graph(text.format([2, 3], attributes, [1, 1, 1, 1])), dynamic="*")


def test_automatic_padding_in_steps_of_one() -> None:
    model = graph(
        "g (float[n,3,h,w] x) => (float[n,5,h,w] y) "
        '{ a = Conv<auto_pad = "SAME_LOWER">(x, k) b = MaxPool<kernel_shape = [2, 3], auto_pad = "SAME_UPPER">(a) '
        'y = AveragePool<kernel_shape = [2, 2], auto_pad = "SAME_LOWER">(b) }',
        k=KERNEL[:, :, :2],
    )
    check(model, *({"x": (2, 3, *size)} for size in ((1, 1), (2, 33), (7, 5))))


def test_automatic_padding_in_longer_steps() -> None:
    model = graph(
        "g (float[n,3,h,w] x) => (float[n,5,p,q] y, float[n,5,r,s] z) "
        '{ a = Conv<strides = [2, 3], auto_pad = "SAME_UPPER">(x, k) '
        'y = MaxPool<kernel_shape = [3, 2], strides = [2, 2], auto_pad = "SAME_LOWER">(a) '
        'b = Conv<strides = [2, 2], auto_pad = "SAME_LOWER">(x, k) '
        'z = MaxPool<kernel_shape = [2, 3], strides = [2, 3], auto_pad = "SAME_UPPER">(b) }',
        k=KERNEL,
    )
    check(model, *({"x": (2, 3, *size)} for size in ((1, 1), (2, 33), (7, 5), (8, 16), (9, 4))))


@pytest.mark.parametrize(
    ("call", "kernel"), [("AveragePool<kernel_shape = [3, 3], {}>(x)", 3), ("MaxPool<kernel_shape = [2, 2], {}>(x)", 2)]
)
def test_automatic_padding_that_depends_on_a_size_is_refused(call: str, kernel: int) -> None:
    attributes = f'strides = [{5 - kernel}, {5 - kernel}], auto_pad = "SAME_UPPER"'
    model = graph(f"g (float[n,3,h,w] x) => (float[n,c,p,q] y) {{ y = {call.format(attributes)} }}")
    with pytest.raises(UnsupportedOperatorError, match=r"in steps of \d depends on extent h"):
        tvm_ext.import_model(model, dynamic="*")
    tvm_ext.import_model(model, input_shapes={"x": (1, 3, 8, 9)})


def test_sizes_are_computed_in_the_precision_of_their_floats() -> None:
    model = graph(
        "g (float[n,10] x) => (float[n,k] y) { shape = Shape(x) f = Cast<to = 1>(shape) m = Mul(f, share) "
        "floor = Floor(m) e = Cast<to = 7>(floor) end = Gather(e, one) y = Slice(x, zero, end, one) }",
        share=np.array([1, 0.7], "float32"),
        one=np.array([1]),
        zero=np.array([0]),
    )
    found = propagate(operator_graph(model, open_dimensions("*")))
    assert found.facts["end"].value.tolist() == [7]  # type: ignore[union-attr]
    check(model, {"x": (3, 10)})


def test_filled_floats_are_divided_as_floats() -> None:
    model = graph(
        "g (float[n] x) => (float[2] y) { a = ConstantOfShape<value = float[1] {7}>(two) "
        "b = ConstantOfShape<value = float[1] {2}>(two) y = Div(a, b) }",
        two=np.array([2]),
    )
    assert propagate(operator_graph(model)).facts["y"].value.tolist() == [3.5, 3.5]  # type: ignore[union-attr]


def test_frames_of_signals_of_any_number_and_length() -> None:
    model = graph(
        "g (float[n,t,1] x) => (float[n,f,k,2] y) { y = STFT<onesided=1>(x, step, window) }",
        step=np.array(16),
        window=np.hanning(32).astype("float32"),
    )
    check(model, *({"x": (n, t, 1)} for n, t in ((1, 32), (3, 47), (2, 48), (1, 333))))
    short = tvm_ext.compile(model, dynamic="*").run({"x": np.zeros((2, 20, 1), "float32")})
    assert [array.shape for array in short.values()] == [(2, 0, 17, 2)]


def test_transforms_of_any_number_of_signals() -> None:
    model = graph("g (float[n,17,1] x) => (float[n,k,2] y) { y = DFT<onesided=1, axis=1>(x) }")
    check(model, *({"x": (n, 17, 1)} for n in (1, 2, 7)))
    opened = graph("g (float[n,t,1] x) => (float[n,k,2] y) { y = DFT<onesided=1, axis=1>(x) }")
    check(opened, *({"x": (n, t, 1)} for n, t in ((1, 1), (2, 2), (3, 17), (1, 64))))


def test_selecting_by_a_condition_of_another_length() -> None:
    """What a condition says beyond the end of what is selected from counts for nothing."""
    model = graph(
        "g (float[n,h] x, float[m] c) => (float[n,p] y, float[q] z) "
        "{ zero = Sub(c, c) b = Greater(c, zero) y = Compress<axis = -1>(x, b) z = Compress(x, b) }"
    )
    shapes = (((2, 7), 3), ((2, 3), 33), ((1, 2), 60), ((0, 4), 4), ((3, 4), 0), ((3, 17), 51))
    check(model, *({"x": size, "c": (length,)} for size, length in shapes), dynamic="n=0..,h=0..,m=0..")


@pytest.mark.parametrize("size", [[2**33, 2**33], [-1, 3], [-2, -3]])
def test_sizes_that_no_tensor_has_are_refused(size: list[int]) -> None:
    model = graph(
        "g (int64[2] s, float[1,1] x) => (float[p,q] y, float[r,t] z) "
        "{ y = ConstantOfShape(s) a = Abs(s) e = Expand(x, a) z = Neg(e) }"
    )
    compiled = tvm_ext.compile(model)
    with pytest.raises(InputError, match="a size that is computed from values of the inputs is negative or too large"):
        compiled.run({"s": np.array(size), "x": np.ones((1, 1), "float32")})
    results = compiled.run({"s": np.array([3, 5]), "x": np.ones((1, 1), "float32")})
    assert [value.shape for value in results.values()] == [(3, 5), (3, 5)]


def test_classes_whose_number_is_an_extent_or_computed() -> None:
    model = graph(
        "g (float[n,m] x) => (float[n,m] y, float[n,k] z) { s = Shape(x) depth = Gather(s, one) "
        "a = ArgMax<axis = 1, keepdims = 0>(x) y = OneHot<axis = 1>(a, depth, offon) "
        "top = ReduceMax<keepdims = 0>(a) next = Add(top, one) z = OneHot(a, next, offon) }",
        one=np.array(1),
        offon=np.array([0, 1], "float32"),
    )
    check(model, *({"x": size} for size in ((1, 1), (3, 7), (17, 33), (31, 2))))


def test_parts_whose_lengths_are_extents() -> None:
    model = graph(
        "g (float[n,m] x, float[k,m] c) => (float[k,m] y, float[q,m] z) "
        "{ sx = Shape(x) sc = Shape(c) n = Gather(sx, zero) k = Gather(sc, zero) rest = Sub(n, k) "
        "lengths = Concat<axis = 0>(k, rest) y, z = Split<axis = 0>(x, lengths) }",
        zero=np.array([0]),
    )
    sizes = ((3, 1), (7, 7), (17, 16), (33, 2))
    check(model, *({"x": (n, 3), "c": (k, 3)} for n, k in sizes))
    compiled = tvm_ext.compile(model, dynamic="*")
    with pytest.raises(InputError):
        compiled.run({"x": np.zeros((3, 3), "float32"), "c": np.zeros((5, 3), "float32")})


def test_what_is_masked_by_values_is_compiled_in_seconds() -> None:
    """The check of vector code took the values apart by which lanes were chosen, and did not end."""
    model = graph(
        "g (float[n,t,8] x) => (float[t,n,8] y) { a = Transpose<perm=[1,0,2]>(x) b = Transpose<perm=[0,2,1]>(a) "
        "s = MatMul(a, b) l = Trilu<upper=0>(s) e = Equal(l, zero) m = Where(e, low, s) p = Softmax<axis=-1>(m) "
        "y = MatMul(p, a) }",
        zero=np.float32(0),
        low=np.float32(-50),
    )
    check(model, *({"x": (n, t, 8)} for n, t in ((1, 1), (3, 2), (17, 3), (33, 5), (70, 1))), dynamic="n=1..,t=1..")


@pytest.mark.parametrize("step", [1, 2])
def test_products_of_slices_that_may_be_all_there_is(step: int) -> None:
    """What was sliced has the extents of its slice, whichever way it took."""
    model = graph(
        "g (float[n,s,4] x) => (float[p,q,r] y) { a = Slice(x, begin, end, axis, step) "
        "b = Tile(a, ones) c = Transpose<perm = [0, 2, 1]>(a) y = MatMul(b, c) }",
        begin=np.array([0]), end=np.array([3]), axis=np.array([0]), step=np.array([step]), ones=np.array([1, 1, 1]),
    )  # fmt: skip
    check(model, *({"x": (n, 5, 4)} for n in (0, 1, 2, 3, 7)), dynamic="n=0..,s=1..")
