"""A model that is run again and again checks inputs as strictly, and mixes up no memory."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_ext
from tests.shapes.dynamic_models import MODELS
from tvm_ext.artifact.compiled_model import CompiledModel
from tvm_ext.artifact.machine import LARGEST_COPY
from tvm_ext.artifact.staging import MOST_SHAPES
from tvm_ext.errors import InputError


@I.ir_module
class Open:
    @R.function
    def main(x: R.Tensor(("n", 3), "float32"), y: R.Tensor(("n", 3), "float32")):  # type: ignore
        with R.dataflow():
            z = R.subtract(x, y)
            out = (z, x)
            R.output(out)
        return out


@pytest.fixture(scope="module")
def model() -> CompiledModel:
    return tvm_ext.compile(Open)


def pair(rows: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((rows, 3)).astype("float32") for _ in range(2)]


@pytest.mark.parametrize("rows", [0, 1, 7, 33, LARGEST_COPY // 12 - 1, LARGEST_COPY // 12 + 1])
def test_results_are_those_of_the_run_and_stay(model: CompiledModel, rows: int) -> None:
    kept = []
    for seed in range(4):
        given = pair(rows, seed)
        before = [array.copy() for array in given]
        kept.append((before, list(model.run(given).values())))
        for array, old in zip(given, before, strict=True):
            np.testing.assert_array_equal(array, old)
            array[...] = -1.0  # what a result shows after this is its own memory
    for (x, y), (difference, same) in kept:
        np.testing.assert_array_equal(difference, x - y)
        np.testing.assert_array_equal(same, x)


def test_shapes_that_change_from_run_to_run(model: CompiledModel) -> None:
    for seed, rows in enumerate([3, 5, 3, 0, 5, 1, 3, 40_000, 3]):
        x, y = pair(rows, seed)
        np.testing.assert_array_equal(next(iter(model.run({"y": y, "x": x}).values())), x - y)


def test_what_fits_no_more_is_refused_after_runs_that_went_well(model: CompiledModel) -> None:
    x, y = pair(4, 0)
    for _ in range(3):
        model.run({"x": x, "y": y})
    for wrong, said in (
        ({"x": x.astype("float64"), "y": y}, "float64"),
        ({"x": x, "y": y[:3]}, "must be 4"),
        ({"x": x, "z": y}, "'z'"),
        ({"x": x}, "'y'"),
        ({"x": x, "y": y, "z": y}, "'z'"),
        ([x], "1 inputs given"),
        ({"x": np.ma.masked_less(x, 0.0), "y": y}, "masked"),
    ):
        with pytest.raises(InputError, match=said):
            model.run(wrong)


def test_arrays_in_other_forms_are_taken(model: CompiledModel) -> None:
    x, y = pair(6, 1)
    model.run([x, y])
    wide = np.zeros((6, 9), "float32")
    wide[:, ::3] = x
    read_only = y.copy()
    read_only.flags.writeable = False
    for first, second in (
        (wide[:, ::3], y), (np.asfortranarray(x), y), (x.tolist(), y), (x.astype(">f4"), y), (x, read_only),
    ):  # fmt: skip
        if isinstance(first, list):
            first = np.asarray(first, "float32")
        np.testing.assert_array_equal(next(iter(model.run([first, second]).values())), x - y)


def test_values_are_checked_each_time() -> None:
    case = MODELS["attention_block"]()
    model = tvm_ext.compile(case.model, dynamic=case.dynamic)
    feeds: dict[str, Any] = case.feeds({"batch": 2, "seq": 5})
    for _ in range(2):
        model.run(feeds)
    feeds["ids"][1, 3] = 50
    with pytest.raises(InputError, match=r"found 50 at \[1, 3\]"):
        model.run(feeds)


def test_types_that_numpy_has_not_of_itself_are_copied_anew() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")

    @I.ir_module
    class Small:
        @R.function
        def main(x: R.Tensor((5,), "bfloat16")):  # type: ignore
            with R.dataflow():
                y = R.astype(x, "float32")
                R.output(y)
            return y

    model = tvm_ext.compile(Small)
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal(5).astype(ml_dtypes.bfloat16)
        np.testing.assert_array_equal(next(iter(model.run([x]).values())), x.astype("float32"))


def test_threads_have_places_of_their_own(model: CompiledModel) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(40):
            x, y = pair(1 + (number + turn) % 3, 100 * number + turn)
            if not np.array_equal(next(iter(model.run([x, y]).values())), x - y):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_memory_of_shapes_is_bounded(model: CompiledModel) -> None:
    for rows in range(1, MOST_SHAPES + 20):
        model._staging.remember(pair(rows, 0))
    assert len(model._staging._seen) <= MOST_SHAPES
