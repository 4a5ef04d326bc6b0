"""Products with weights in words against numpy, for one row and for several, at awkward extents."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tvm_ext.generation.quantization import dequantized, quantized, stored, weight_format
from tvm_ext.schedules.compute.weight_words import WeightShape, rounded_to_bfloat16
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.cpu.word_dots import LARGEST, has_dots
from tvm_ext.schedules.cpu.word_product import word_product
from tvm_ext.target import resolve_target

FORMATS = ("float32", "bfloat16", "int8", "int8-128-asymmetric", "int4", "int4-128", "int4-32-asymmetric")
SHAPES = ((33, 7), (127, 129))


def check(weight: np.ndarray, text: str, rows: int | None, counts: tuple[int, ...]) -> None:
    """Compare the kernel with numpy, for several numbers of rows."""
    target, form = resolve_target(None), weight_format(text)
    machine = machine_of(target)
    lanes = machine.lanes("float32")
    shape = WeightShape(*weight.shape, lanes, form)
    arrays = stored(weight, form, lanes)
    assert [(array.shape, str(array.dtype)) for array in arrays] == list(shape.stored)
    assert sum(array.nbytes for array in arrays) == shape.nbytes
    if form.is_integer:
        meant = dequantized(*quantized(weight, form), form)
    elif form.bits == 16:
        meant = rounded_to_bfloat16(weight.view("uint32")).view("float32")
    else:
        meant = weight
    kernel = word_product(shape, rows, machine).with_attr("global_symbol", "main")
    run = tvm.compile(tvm.IRModule({"main": kernel}), target=target)["main"]
    for count in counts:
        data = np.random.default_rng(count).standard_normal((count, len(weight))).astype("float32")
        out = tvm.runtime.tensor(np.full((count, weight.shape[1]), np.nan, "float32"))
        run(*(tvm.runtime.tensor(array) for array in (data, *arrays)), out)
        expected = data.astype("float64") @ meant.astype("float64")
        error = 1e-5 * (np.abs(data) @ np.abs(weight)).max()
        if count == 1 and has_dots(shape, machine):  # data of a group is off by half a step at most
            error = error + np.abs(meant).sum(0) * np.abs(data).max() / LARGEST / 2
        assert (np.abs(out.numpy() - expected) <= error).all(), (weight.shape, rows, count)


@pytest.mark.parametrize("text", FORMATS)
def test_values(text: str) -> None:
    rng = np.random.default_rng(len(text))
    for reduction, columns in SHAPES:
        check(rng.standard_normal((reduction, columns)).astype("float32"), text, None, (1, 2, 7, 31))


@pytest.mark.slow
@pytest.mark.parametrize("text", FORMATS)
def test_values_of_further_shapes(text: str) -> None:
    rng = np.random.default_rng(len(text))
    for reduction, columns in ((1, 1), (256, 96), (640, 31), (17, 3), (3001, 34)):
        weight = rng.standard_normal((reduction, columns)).astype("float32")
        check(weight, text, None, (1, 5, 17, 33))
        check(weight, text, 1, (1,))


@pytest.mark.parametrize("text", ["int8", "int4", "int4-128", "int8-32-asymmetric", "int4-32-asymmetric"])
def test_quantized_weights_are_half_a_step_off_at_most(text: str) -> None:
    form = weight_format(text)
    weight = np.random.default_rng(1).standard_normal((200, 9)).astype("float32")
    weight[:, 3], weight[:32, 4] = 0, 5
    integers, scales, zeros = quantized(weight, form)
    assert int(integers.max()) < 1 << form.bits
    step = np.repeat(scales, form.group, 0)[:200]
    off = np.abs(dequantized(integers, scales, zeros, form) - weight)
    assert (off <= step * 0.5001 + 1e-6).all()
    assert not off[:, 3].any()


def test_bfloat16_is_rounded_as_torch_does() -> None:
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(2).standard_normal(1000).astype("float32")
    values[:4] = np.nan, np.inf, -np.inf, 1 + 2**-8
    expected = torch.tensor(values).bfloat16().float().numpy()
    np.testing.assert_array_equal(rounded_to_bfloat16(values.view("uint32")).view("float32"), expected)
