"""Models with open dimensions give what onnxruntime gives, at every size, and say which sizes they refuse."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_ext
from tests.frontend.onnx.text import graph
from tests.shapes.dynamic_model import DynamicModel
from tests.shapes.dynamic_models import MODELS
from tests.shapes.dynamic_operators import limited_reshape, two_inputs
from tvm_ext.artifact.compiled_model import CompiledModel
from tvm_ext.dynamic import open_dimensions
from tvm_ext.errors import InputError, OptionError

onnxruntime = pytest.importorskip("onnxruntime")

QUICK = ("mlp", "cache_attention", "found_places", "branch_by_size", "one_rate", "slices", "repeated", "scanned")


def compiled(case: DynamicModel) -> CompiledModel:
    return tvm_ext.compile(case.model, dynamic=case.dynamic)


def agree(case: DynamicModel, model: CompiledModel, count: int) -> None:
    """Compare for as many sizes, the smallest and the largest among them."""
    session = onnxruntime.InferenceSession(case.model.SerializeToString())
    for seed, sizes in enumerate(case.sizes(count)):
        feeds = case.feeds(sizes, seed)
        expected, found = session.run(None, feeds), list(model.run(feeds).values())
        for want, got in zip(expected, found, strict=True):
            assert want.shape == got.shape, (case.name, sizes)
            np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4, err_msg=f"{case.name} {sizes}")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_every_size(name: str) -> None:
    case = MODELS[name]()
    agree(case, compiled(case), 50)


@pytest.mark.parametrize(
    "name", [name if name in ("slices", "repeated") else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_the_highest_level(name: str) -> None:
    case = MODELS[name]()
    options = {"fuse": "mapping-type", "rewrite": "strict"}  # what -O3 sets
    agree(case, tvm_ext.compile(case.model, dynamic=case.dynamic, **options), 10)


def test_sizes_outside_of_a_range_and_contradicting_ones_are_refused() -> None:
    case = MODELS["cache_attention"]()
    model = compiled(case)
    feeds = case.feeds({"batch": 2, "past": 3, "seq": 4})
    feeds["new"] = feeds["new"][:1]
    with pytest.raises(InputError, match=r"input new: float32\[batch,seq,8\]: dimension 0 must be 2, .* of batch"):
        model.run(feeds)
    for wrong, low, high in (({"batch": 4, "past": 3, "seq": 4}, 1, 3), ({"batch": 1, "past": 21, "seq": 4}, 0, 20)):
        with pytest.raises(InputError, match=rf"the model is made for {low} to {high}"):
            model.run(case.feeds(wrong))
    with pytest.raises(InputError, match=r"dimension 1 is 0, and the model is made for 1 to 9"):
        model.run(case.feeds({"batch": 1, "past": 3, "seq": 0}))


def test_sizes_that_do_not_fit_each_other_are_refused() -> None:
    case = two_inputs()
    model = compiled(case)
    with pytest.raises(InputError, match=r"m = 4|k = 5"):
        model.run(case.feeds({"n": 2, "m": 4, "k": 5}))
    feeds = case.feeds({"n": 2, "m": 4, "k": 4})
    np.testing.assert_allclose(model.run(feeds)["y"], (feeds["a"] + feeds["b"]) @ feeds["c"], rtol=1e-4, atol=1e-5)


def test_the_smaller_of_a_size_and_a_number() -> None:
    case = limited_reshape()
    model = compiled(case)
    session = onnxruntime.InferenceSession(case.model.SerializeToString())
    for n in (1, 99, 100, 200, 300):
        feeds = case.feeds({"n": n})
        np.testing.assert_array_equal(model.run(feeds)["y"], session.run(None, feeds)[0])


@pytest.mark.parametrize(
    ("dynamic", "message"),
    [
        ("m=1..8", "has no open dimension 'm'; its open dimensions are n"),
        ("x:1=1..8", "fixes it to 17"),
        ("x:7=1..8", "input 'x' has 2 dimensions"),
        ("n=1..8,x:0=1..8", "are the same one"),
    ],
)
def test_dimensions_that_a_model_does_not_have_are_refused(dynamic: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tvm_ext.import_model(MODELS["mlp"]().model, dynamic=dynamic)


def test_one_dimension_of_two_inputs_is_asked_for_once() -> None:
    model = graph("g (float[n,3] x, float[n,3] y) => (float[n,3] z) { z = Add(x, y) }")
    with pytest.raises(InputError, match="dimensions 'y:0' and 'x:0' are the same one"):
        tvm_ext.import_model(model, dynamic="x:0=1..3,y:0=1..5")


def test_limits_may_be_integers_of_numpy() -> None:
    assert open_dimensions({"n": (np.int64(2), np.int32(5))}) == open_dimensions("n=2..5")


@pytest.mark.parametrize(
    ("dynamic", "message"),
    [
        ("n=5..3", "the range 5..3 of dimension 'n' is empty"),
        ("n=-1..3", "is empty, negative"),
        ("n=a..3", "is no range"),
        ("n=1..3,n=1..4", "given twice"),
        ({"n": (1, 2, 3)}, "is no range"),
        ({"n": (True, 3)}, "is no range"),
        (7, "neither|no text"),
    ],
)
def test_ranges_that_are_none_are_refused(dynamic: object, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        tvm_ext.import_model(MODELS["mlp"]().model, dynamic=dynamic)


def test_forms_of_the_option() -> None:
    model = MODELS["mlp"]().model
    forms: list[object] = ["n", "n=1..", "*", {"n": None}, {"x:0": (1, None)}, "x:0=1.."]
    specs = {str(tvm_ext.import_model(model, dynamic=form).inputs[0].ranges) for form in forms}
    assert specs == {"((1, None), None)"}
    assert tvm_ext.import_model(model, dynamic={"n": range(2, 9)}).inputs[0].ranges == ((2, 8), None)


@pytest.mark.parametrize("name", ["limited_reshape", "branch_by_size", "best_of"])
def test_a_name_in_place_of_a_number_is_right_beyond_the_samples(name: str) -> None:
    case = limited_reshape() if name == "limited_reshape" else MODELS[name]()
    shape = {"limited_reshape": ["n", 100], "branch_by_size": ["n", 3], "best_of": [4, "n"]}[name]
    model = tvm_ext.compile(case.model, input_shapes={"x": shape})
    session = onnxruntime.InferenceSession(case.model.SerializeToString())
    for n in (1, 50, 200):
        x = np.random.default_rng(n).random([n if isinstance(dim, str) else dim for dim in shape], "float32")
        np.testing.assert_array_equal(next(iter(model.run([x]).values())), session.run(None, {"x": x})[0])


def test_a_branch_that_cannot_run_with_fixed_sizes_is_left_out() -> None:
    case = MODELS["one_rate"]()
    feeds = case.feeds({"n": 5})
    model = tvm_ext.compile(case.model, input_shapes={"x": (5, 12)})
    (want,) = onnxruntime.InferenceSession(case.model.SerializeToString()).run(None, feeds)
    np.testing.assert_allclose(model.run(feeds)["y"], want, rtol=1e-4, atol=1e-5)
