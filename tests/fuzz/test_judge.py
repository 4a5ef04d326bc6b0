"""The judge tells a wrong answer from one that rounding explains."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

pytest.importorskip("onnxruntime")

from scripts.fuzz import reference
from scripts.fuzz.judge import judge

GENERATOR = np.random.default_rng(0)


def model_of(signature: str, body: str, constants: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {signature} {constants} {{ {body} }}')


PRODUCT = model_of("(float[5,64] x, float[64,7] y) => (float[5,7] z)", "z = MatMul(x, y)")
FLOOR = model_of(
    "(float[64] x) => (float[64] z)",
    "a = Mul(x, third) b = Mul(a, three) z = Floor(b)",
    "<float[1] third = {0.33333334}, float[1] three = {3.0}>",
)
CAST = model_of("(float[4] x) => (int32[4] z, float[4] w)", "z = Cast<to = 6>(x) w = Relu(x)")
LARGEST = model_of("(float[1,9] x) => (int64[1] z)", "z = ArgMax<axis = 1, keepdims = 0>(x)")


def kinds(model: onnx.ModelProto, feeds: dict[str, np.ndarray], found: list[np.ndarray]) -> list[str]:
    return [verdict.kind for verdict in judge(model, feeds, reference.run(model, feeds), found)]


def normal(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype("float32")


def test_the_same_answer_and_one_with_an_error() -> None:
    feeds = {"x": normal(5, 64), "y": normal(64, 7)}
    (right,) = reference.run(PRODUCT, feeds)
    assert kinds(PRODUCT, feeds, [right]) == ["same"]
    for change in (1e-3, np.nan, np.inf):
        found = right.copy()
        found[3, 2] += change
        assert kinds(PRODUCT, feeds, [found]) == ["wrong"]
    assert kinds(PRODUCT, feeds, [right.reshape(7, 5)]) == ["wrong"]
    assert kinds(PRODUCT, feeds, [right.astype("float64")]) == ["wrong"]


def test_a_missing_term_is_wrong_also_where_terms_cancel() -> None:
    x = normal(5, 64) * 1e3
    x[:, 1::2] = -x[:, ::2]
    feeds = {"x": x, "y": np.ones((64, 7), "float32")}
    (right,) = reference.run(PRODUCT, feeds)
    order = GENERATOR.permutation(64)
    again = x[:, order] @ feeds["y"][order]
    assert kinds(PRODUCT, feeds, [again]) in (["same"], ["rounding"])
    assert kinds(PRODUCT, feeds, [x[:, 1:] @ feeds["y"][1:]]) == ["wrong"]
    assert right.shape == again.shape


STEPS = model_of(
    "(float[64,64] x, float[64,8] w) => (float[64,8] z)",
    "a = Mul(x, third) b = Mul(a, three) q = QuantizeLinear(b, step, zero) c = DequantizeLinear(q, step, zero)"
    "d = MatMul(c, w) r = QuantizeLinear(d, step, zero) z = DequantizeLinear(r, step, zero)",
    "<float[1] third = {0.33333334}, float[1] three = {3.0}, float step = {0.0625}, uint8 zero = {128}>",
)


def test_quantised_sums_in_the_middle_of_two_steps_move_what_is_behind_them() -> None:
    feeds = {"x": normal(64, 64), "w": normal(64, 8) / 8}
    feeds["x"][:, ::3] = np.round(feeds["x"][:, ::3] * 16) / 16 + 0.03125
    (right,) = reference.run(STEPS, feeds)
    (again,) = reference.run(STEPS, feeds | {"x": feeds["x"] * np.float32(1 + 2.0**-20)})
    assert (again != right).any()
    assert kinds(STEPS, feeds, [again]) == ["rounding"]
    far = right.copy()
    far[3, 2] += 4.0
    for wrong in (far, right + np.float32(0.5), right * np.nan):
        assert kinds(STEPS, feeds, [wrong]) == ["wrong"]


def test_operators_of_integers_that_onnx_does_not_have_may_round_otherwise() -> None:
    body = "a = com.microsoft.QLinearSigmoid(q, step, zero, small, none)"
    text = (
        '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> g (float[9,40] x) => (float[9,40] z) '
        "<float step = {0.0625}, uint8 zero = {128}, float small = {0.00390625}, uint8 none = {0}> "
        f"{{ q = QuantizeLinear(x, step, zero) {body} z = DequantizeLinear(a, small, none) }}"
    )
    model = onnx.parser.parse_model(text)
    feeds = {"x": normal(9, 40)}
    (right,) = reference.run(model, feeds)
    step = right.copy()
    step[3, 2] += np.float32(1 / 256)
    assert kinds(model, feeds, [step]) == ["rounding"]
    assert kinds(model, feeds, [right + np.float32(4 / 256)]) == ["wrong"]
    step[3, 2] += np.float32(0.5)
    assert kinds(model, feeds, [step]) == ["wrong"]


def test_a_floor_may_fall_to_either_side_of_a_tie_only() -> None:
    x = np.arange(64, dtype="float32") - 20
    x[::2] += 0.5
    (right,) = reference.run(FLOOR, {"x": x})
    tie = right.copy()
    tie[1] -= 1
    assert kinds(FLOOR, {"x": x}, [tie]) == ["rounding"]
    clear = right.copy()
    clear[2] -= 1
    assert kinds(FLOOR, {"x": x}, [clear]) == ["wrong"]


def test_exact_operators_have_to_be_exact() -> None:
    x = np.zeros((1, 9), "float32")
    x[0, [2, 5]] = 1.0  # a tie between values that nothing rounds: the first one counts
    assert kinds(LARGEST, {"x": x}, [np.array([2])]) == ["same"]
    assert kinds(LARGEST, {"x": x}, [np.array([5])]) == ["wrong"]


def test_what_onnx_leaves_open() -> None:
    x = np.array([1.5, np.nan, 3e10, -2.5], "float32")
    relu = np.maximum(x, 0)
    wild = np.array([1, 7, 7, -2], "int32")
    assert kinds(CAST, {"x": x}, [wild, relu]) == ["unspecified", "same"]
    assert kinds(CAST, {"x": x}, [wild, np.nan_to_num(relu)]) == ["unspecified", "wrong"]
    x[1:3] = 0
    assert kinds(CAST, {"x": x}, [wild, np.maximum(x, 0)]) == ["wrong", "same"]


ENLARGED = model_of(
    "(float[1,1,15,4] x) => (float[1,1,34,1] z)",
    'z = Resize<mode = "cubic", coordinate_transformation_mode = "pytorch_half_pixel">(x, , , sizes)',
    "<int64[4] sizes = {1, 1, 34, 1}>",
)


def test_weights_that_are_nearly_zero_round_like_others() -> None:
    """A huge number next to the edge of a cubic kernel."""
    x = normal(1, 1, 15, 4)
    x[0, 0, 3, 0] = 1e15
    feeds = {"x": x}
    (right,) = reference.run(ENLARGED, feeds)
    found = right.copy()
    found[0, 0, 3] += 5e8  # of 1.4e12, half a millionth of the huge one
    assert kinds(ENLARGED, feeds, [found]) == ["rounding"]
    found[0, 0, 3] += 1e11
    assert kinds(ENLARGED, feeds, [found]) == ["wrong"]


PROBABLE = model_of("(float[1,7] x) => (float[1,7] z)", "y = LogSoftmax<axis = 1>(x) z = Reciprocal(y)")


def test_a_logarithm_of_a_sum_next_to_one_has_few_digits() -> None:
    feeds = {"x": np.array([[21.2, 4.8, 4.4, 10.4, 5.4, 5.4, 5.5]], "float32")}
    (right,) = reference.run(PROBABLE, feeds)
    found = right.copy()
    found[0, 0] *= 1.011  # two units in the last place of the sum
    assert kinds(PROBABLE, feeds, [found]) == ["rounding"]
    found[0, 1] *= 3
    assert kinds(PROBABLE, feeds, [found]) == ["wrong"]


LOWEST = model_of("(float[4] x) => (float[4] z)", "z = Clip(x, low)", "<float low = {-1.0}>")


def test_a_bound_that_is_left_out_is_none_or_the_end_of_the_type() -> None:
    feeds = {"x": np.array([-5, 2, np.inf, 0.5], "float32")}
    assert kinds(LOWEST, feeds, [np.array([-1, 2, np.inf, 0.5], "float32")]) == ["unspecified"]
    assert kinds(LOWEST, {"x": feeds["x"][[0, 1, 1, 3]]}, [np.array([-1, 2, 3, 0.5], "float32")]) == ["wrong"]


def test_a_product_that_overflows_in_one_order_only_is_open() -> None:
    model = model_of("(float[1,4] x) => (float[1] z)", "z = ReduceProd<axes = [1], keepdims = 0>(x)")
    found = [np.array([np.inf], "float32")]
    assert kinds(model, {"x": np.array([[1e30, 1e-30, 1e30, 1e-30]], "float32")}, found) == ["unspecified"]
    assert kinds(model, {"x": np.array([[1e10, 1e-10, 1e10, 1e-10]], "float32")}, found) == ["wrong"]


def test_a_running_sum_of_what_is_not_finite_is_open() -> None:
    model = model_of("(float[1,9,1,1] x) => (float[1,9,1,1] z)", "z = LRN<size = 3>(x)")
    x = normal(1, 9, 1, 1)
    assert kinds(model, {"x": x}, [x + 1]) == ["wrong"]
    x[0, 0] = np.inf
    assert kinds(model, {"x": x}, [x + 1]) == ["unspecified"]


def test_results_that_are_denormal_may_be_zero() -> None:
    model = model_of("(float[4] x) => (float[4] z)", "y = Exp(x) z = Log(y)")
    feeds = {"x": np.array([-100, -2, -95, 3], "float32")}
    (right,) = reference.run(model, feeds)
    found = right.copy()
    found[0] = -np.inf
    assert kinds(model, feeds, [found]) == ["rounding"]
    found[1] = -np.inf
    assert kinds(model, feeds, [found]) == ["wrong"]


def test_what_double_precision_calls_infinite_or_not_a_number() -> None:
    """onnxruntime's sigmoid of -20 is 0, so that the logarithm of a product with it is infinite instead of NaN."""
    model = model_of("(float[4] x) => (float[4] z)", "s = Sigmoid(x) y = Mul(x, s) z = Log(y)")
    feeds = {"x": np.array([-20, 1, 2, 3], "float32")}
    with np.errstate(invalid="ignore"):
        right = np.log(feeds["x"] / (1 + np.exp(-feeds["x"]))).astype("float32")
    assert kinds(model, feeds, [right]) == ["rounding"]
    right[1] = np.nan
    assert kinds(model, feeds, [right]) == ["wrong"]


def test_an_angle_of_which_rounding_is_a_good_part_of_a_turn_is_open() -> None:
    model = model_of("(float[2] x) => (float[2] z)", "y = Tan(x) z = Sinh(y)")
    assert kinds(model, {"x": np.array([3e13, 1], "float32")}, [np.array([7, 7], "float32")]) == ["unspecified"]
    assert kinds(model, {"x": np.array([3e4, 1], "float32")}, [np.array([7, 7], "float32")]) == ["wrong"]


def test_the_nearer_to_double_precision_is_right_also_behind_what_only_onnxruntime_computes() -> None:
    """The package's own LRN fails for an even number of channels; one pixel minus its mean leaves the bias."""
    model = model_of(
        "(float[3,4,1,1] x) => (float[3,4,1,1] z)",
        "y = LRN<size = 5>(x) z = InstanceNormalization(y, scale, bias)",
        "<float[4] scale = {1.7, 1.5, -1.3, 1.1}, float[4] bias = {-0.44981268, 0.1, 0.2, 0.3}>",
    )
    feeds = {"x": 4 * np.ones((3, 4, 1, 1), "float32")}
    bias = np.broadcast_to(np.array([-0.44981268, 0.1, 0.2, 0.3], "float32").reshape(1, 4, 1, 1), (3, 4, 1, 1))
    assert set(kinds(model, feeds, [bias])) <= {"same", "rounding"}
    exact = reference.in_double_precision(model, feeds)
    assert exact is not None
    np.testing.assert_array_equal(exact[0].astype("float32"), bias)
    assert kinds(model, feeds, [bias + np.float32(0.01)]) == ["wrong"]


def test_a_logarithm_of_shares_of_infinity_is_no_number() -> None:
    """onnxruntime's answer in double precision is minus infinity for the others of the row."""
    model = model_of("(double[2,3] x) => (double[2,3] z)", "z = LogSoftmax<axis = 1>(x)")
    feeds = {"x": np.array([[1, np.inf, 2], [1, 2, 3]])}
    (right,) = reference.run(model, feeds)
    right[0] = np.nan
    assert kinds(model, feeds, [right]) in (["same"], ["rounding"])
    right[1, 1] = np.nan
    assert kinds(model, feeds, [right]) == ["wrong"]


HARDMAX = model_of("(float[2,4] x) => (float[2,4] z)", "a = Exp(x) z = Hardmax<axis = 1>(a)")


@pytest.mark.parametrize(("gap", "kind"), [(0.0, "unspecified"), (1e-7, "unspecified"), (1e-2, "wrong")])
def test_a_choice_between_computed_values_is_open_within_rounding(gap: float, kind: str) -> None:
    x = np.array([[0.0, 1.0 + gap, 1.0, -1.0], [3.0, 0.0, 1.0, 2.0]], "float32")
    (right,) = reference.run(HARDMAX, {"x": x})
    other = right.copy()
    other[0] = [0, 0, 1, 0]
    assert kinds(HARDMAX, {"x": x}, [right]) == ["same"]
    assert kinds(HARDMAX, {"x": x}, [other]) == [kind]
