"""Arrays become arguments: in their own memory wherever kernels can read it, in a copy elsewhere."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm

import tvm_ext
from tests.shapes.dynamic_models import MODELS
from tvm_ext.artifact.arguments import LARGE_RESULT, arguments
from tvm_ext.artifact.compiled_model import CompiledModel
from tvm_ext.inputs import ALIGNMENT, aligned
from tvm_ext.tensor_spec import TensorSpec

TYPES = ["float32", "float64", "float16", "int8", "uint8", "int32", "int64", "bool"]


def beginning(array: np.ndarray, offset: int) -> np.ndarray:
    """Copy an array to an address that is so many bytes above a multiple of 64."""
    memory = np.empty(array.nbytes + 2 * ALIGNMENT, "uint8")
    copy: np.ndarray = np.ndarray(array.shape, array.dtype, memory, -memory.ctypes.data % ALIGNMENT + offset)
    copy[...] = array
    return copy


def is_shared(array: Any, dtype: str = "float32", any_element: bool = True) -> bool:
    """Whether the argument made of an array has the array's memory; its values are compared with the array's."""
    specs = [TensorSpec("x", tuple(array.shape), dtype)]
    (tensor,) = arguments(specs, [array], tvm.cpu(), any_element=any_element)
    np.testing.assert_array_equal(tensor.numpy(), array)
    return bool(tensor.data_ptr() == array.__array_interface__["data"][0])


@pytest.mark.parametrize("dtype", TYPES)
def test_arrays_that_begin_at_any_element_are_taken(dtype: str) -> None:
    array = (np.arange(21).reshape(3, 7) % 2).astype(dtype)
    for offset in (0, array.itemsize, 3 * array.itemsize, 16):
        assert is_shared(beginning(array, offset), dtype)
        assert is_shared(beginning(array, offset), dtype, any_element=False) == (offset == 0)


def test_arrays_between_elements_are_copied() -> None:
    array = np.arange(21, dtype="float32").reshape(3, 7)
    assert not is_shared(beginning(array, 2))
    assert not is_shared(beginning(array, 17))


def test_read_only_arrays_are_taken(tmp_path: Path) -> None:
    array = beginning(np.arange(21, dtype="float32").reshape(3, 7), 4)
    array.flags.writeable = False
    assert is_shared(array)
    assert is_shared(np.broadcast_to(array, (1, 3, 7)))
    np.save(tmp_path / "x.npy", array)
    assert is_shared(np.load(tmp_path / "x.npy", mmap_mode="r"))
    empty = np.zeros((0, 7), "float32")
    empty.flags.writeable = False
    is_shared(empty)


def test_a_read_only_array_stays_alive_as_long_as_the_argument() -> None:
    array = beginning(np.arange(1 << 16, dtype="float32"), 4)
    array.flags.writeable = False
    (tensor,) = arguments([TensorSpec("x", (1 << 16,), "float32")], [array], tvm.cpu(), any_element=True)
    del array
    np.full(1 << 16, 7, "float32")  # takes the memory if it was freed
    np.testing.assert_array_equal(tensor.numpy(), np.arange(1 << 16))


def test_other_strides_and_byte_orders_are_copied() -> None:
    array = np.arange(42, dtype="float32").reshape(6, 7)
    for view in (array[::2], array[:, 1:], array.T, array[::-1], np.broadcast_to(array[:1], (6, 7))):
        assert not is_shared(view)
    assert not is_shared(array.astype(">f4"))


def test_types_that_numpy_has_not_are_copied() -> None:
    array = np.arange(21).astype(ml_dtypes.bfloat16)[1:]
    for flag in (True, False):
        array.flags.writeable = flag
        (tensor,) = arguments([TensorSpec("x", (20,), "bfloat16")], [array], tvm.cpu(), any_element=True)
        np.testing.assert_array_equal(tensor.numpy().astype("float32"), array.astype("float32"))


def test_tensors_of_pytorch_that_begin_at_any_element_are_taken() -> None:
    torch = pytest.importorskip("torch")
    values = torch.arange(43, dtype=torch.float32)
    for view, taken in ((values[1:], True), (values[5:], True), (values[::2], False)):
        for any_element in (True, False):
            specs = [TensorSpec("x", tuple(view.shape), "float32")]
            (tensor,) = arguments(specs, [view], tvm.cpu(), any_element=any_element)
            np.testing.assert_array_equal(tensor.numpy(), view.numpy())
            assert (tensor.data_ptr() == view.data_ptr()) == (taken and any_element)


@pytest.fixture(scope="module", params=["mlp", "attention_block", "conformer", "lstm", "pyramid"])
def model(request: pytest.FixtureRequest) -> tuple[Any, CompiledModel]:
    case = MODELS[request.param]()
    return case, tvm_ext.compile(case.model, dynamic=case.dynamic)


def test_kernels_of_open_models_read_inputs_that_begin_anywhere(model: tuple[Any, CompiledModel]) -> None:
    case, compiled = model
    assert compiled.any_element
    for seed, sizes in enumerate(case.sizes(4)):
        feeds = case.feeds(sizes, seed)
        expected = compiled.run({name: aligned(array) for name, array in feeds.items()})
        for offset in (4, 8, 20, 60):
            given = {
                name: beginning(array, offset - offset % array.itemsize + array.itemsize)
                for name, array in feeds.items()
            }
            tensors = arguments(compiled.inputs, given, compiled.device, compiled.conditions, any_element=True)
            for name, tensor in zip(expected, compiled.run_tensors(tensors), strict=True):
                np.testing.assert_array_equal(tensor.numpy(), expected[name], err_msg=f"{name} at {offset}: {sizes}")


def test_two_threads_read_the_same_read_only_input() -> None:
    case = MODELS["mlp"]()
    compiled = tvm_ext.compile(case.model, dynamic={"n": (1, LARGE_RESULT)})
    rows = LARGE_RESULT // 17
    values = np.random.default_rng(0).standard_normal((rows, 17)).astype("float32")
    (name,) = (spec.name for spec in compiled.inputs)
    lent = beginning(values, 4)
    lent.flags.writeable = False
    (expected,) = compiled.run({name: aligned(values)}).values()
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(lambda _: compiled.run({name: lent}), range(8)):
            np.testing.assert_array_equal(next(iter(found.values())), expected)
    np.testing.assert_array_equal(lent, values)


def test_code_without_the_phase_gets_aligned_copies() -> None:
    case = MODELS["mlp"]()
    compiled = tvm_ext.compile(case.model, dynamic=case.dynamic, disable=["vectorize"])
    assert not compiled.any_element
    feeds = case.feeds({name: ends[1] for name, ends in case.limits.items()})
    shifted = {name: beginning(array, 4) for name, array in feeds.items()}
    for name, found in compiled.run(shifted).items():
        np.testing.assert_allclose(found, tvm_ext.compile(case.model, dynamic=case.dynamic).run(feeds)[name], rtol=1e-4)
