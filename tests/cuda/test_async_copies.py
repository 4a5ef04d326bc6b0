"""Products whose tiles come by ``cp.async``, in the emulator: arrivals, barriers, and results against float64."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.script import relax as R

from scripts.cuda.kernels import kernels_of, target_of
from tvm_ext.backends.cuda.async_copies import copies_asynchronously, with_async_copies
from tvm_ext.backends.cuda.emulator.emulate import Emulator
from tvm_ext.schedules.cuda.machine import machine_of
from tvm_ext.schedules.cuda.product import find_product
from tvm_ext.schedules.cuda.product_tile import Tile
from tvm_ext.schedules.cuda.registers import registers_of_lanes
from tvm_ext.schedules.cuda.tensor_matmul import schedule_tensor_product
from tvm_ext.schedules.rule import new_schedule

TARGET = target_of("sm_90")


def module(
    shapes: Sequence[tuple[int, ...]], build, dtype: str = "float16", names: Sequence[str] = "xw"
) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    variables = [relax.Var(name, R.Tensor(shape, dtype)) for name, shape in zip(names, shapes, strict=False)]
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(build(*variables)))
        builder.emit_func_output(result)
    return builder.get()


def wide_product(x: relax.Var, w: relax.Var) -> relax.Expr:
    return R.matmul(x, w, out_dtype="float32")


def drawn(shape: Sequence[int], seed: int, dtype: str = "float16") -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.5).astype(dtype)


def emulated(func: tirx.PrimFunc, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Run a kernel; it must find nothing wrong, arrivals of copies included."""
    others = [
        np.zeros([int(size) for size in param.shape], str(param.dtype)) for param in list(func.params)[len(inputs) :]
    ]
    result = Emulator(func.with_attr("global_symbol", "main"), TARGET)([*inputs, *others])
    assert not result.report.faults, str(result.report)
    return result.arrays[-1]


def tiled(rows: int, columns: int, depth: int, tile: Tile) -> tirx.PrimFunc:
    """Schedule a product with a tile, and let its tiles come asynchronously."""
    (kernel,) = kernels_of("product", module([(rows, depth), (depth, columns)], wide_product), TARGET)
    schedule = new_schedule(kernel.before)
    schedule_tensor_product(schedule, find_product(schedule), tile, machine_of(TARGET), ("float16", "float16"))
    scheduled = registers_of_lanes(schedule.mod["main"])
    assert copies_asynchronously(scheduled) == (tile.stages > 1)
    return with_async_copies(scheduled, TARGET)


@pytest.mark.parametrize(
    "tile",
    [
        Tile(128, 256, 64, 64, 64, 1, 3), Tile(32, 32, 64, 16, 16, 1, 4), Tile(64, 64, 32, 32, 32, 1, 2),
        Tile(64, 64, 32, 32, 32, 1, 5), Tile(32, 32, 16, 16, 16, 1, 3), Tile(32, 32, 64, 16, 16, 3, 2),
    ],
    ids=lambda tile: f"{tile.rows}x{tile.columns}x{tile.depth}p{tile.parts}s{tile.stages}",
)  # fmt: skip
@pytest.mark.parametrize(("rows", "columns", "depth"), [(64, 128, 384), (33, 127, 257), (100, 90, 776), (17, 8, 64)])
def test_products(tile: Tile, rows: int, columns: int, depth: int) -> None:
    """Loops longer and shorter than the stages, fragments ahead and not, parts, edges."""
    if depth < tile.parts * tile.depth * tile.stages:
        pytest.skip("fewer steps than stages; the rule never chooses that")
    x, w = drawn((rows, depth), 0), drawn((depth, columns), 1)
    found = emulated(tiled(rows, columns, depth, tile), [x, w])
    expected = x.astype("float64") @ w.astype("float64")
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_one_barrier_a_step_and_fragments_ahead() -> None:
    """The loop over depth has one wait, one barrier and one commit; fragments have two sets of registers."""
    text = tiled(128, 128, 1024, Tile(64, 64, 32, 32, 32, 1, 4)).script()
    loop = re.search(r"\n( +)for \w+ in range\(29\):\n((?:\1 .*\n)+)", text)
    assert loop is not None, text
    body = loop[2]
    assert [body.count(item) for item in ('"wait_group"', "tvm_storage_sync", '"commit_group"')] == [1, 1, 1]
    assert body.index('"commit_group"') < body.index("ldmatrix") < body.index('"wait_group"') < body.rindex("mma")
    assert "_ahead" in body


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_types(dtype: str) -> None:
    total = "int32" if dtype == "int8" else "float32"
    mod = module([(40, 1024), (1024, 48)], lambda x, w: R.matmul(x, w, out_dtype=total), dtype)
    (kernel,) = kernels_of("product", mod, TARGET)
    assert "cp_async" in kernel.scheduled.script()
    if dtype == "int8":
        x, w = (
            np.random.default_rng(seed).integers(-128, 128, shape).astype("int8")
            for seed, shape in ((0, (40, 1024)), (1, (1024, 48)))
        )
        np.testing.assert_array_equal(emulated(kernel.scheduled, [x, w]), x.astype("int64") @ w.astype("int64"))
        return
    import ml_dtypes

    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    x, w = drawn((40, 1024), 0).astype(kind), drawn((1024, 48), 1).astype(kind)
    expected = x.astype("float64") @ w.astype("float64")
    np.testing.assert_allclose(emulated(kernel.scheduled, [x, w]), expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("channels", "size", "window", "stride"), [(64, 7, 3, 1), (96, 9, 3, 2), (136, 6, 1, 1), (24, 5, 5, 1)]
)
def test_convolutions(channels: int, size: int, window: int, stride: int) -> None:
    """Padding is copied as zeros: the condition is part of the copy."""
    torch = pytest.importorskip("torch")
    mod = module(
        [(1, size, size, channels), (48, window, window, channels)],
        lambda x, w: R.nn.conv2d(
            x, w, strides=stride, padding=window // 2, data_layout="NHWC", kernel_layout="OHWI", out_dtype="float32"
        ),
    )  # fmt: skip
    (kernel,) = kernels_of("convolution", mod, TARGET)
    assert "cp_async" in kernel.scheduled.script()
    x, w = drawn((1, size, size, channels), 0), drawn((48, window, window, channels), 1)
    expected = torch.nn.functional.conv2d(
        torch.from_numpy(x).double().permute(0, 3, 1, 2), torch.from_numpy(w).double().permute(0, 3, 1, 2),
        stride=stride, padding=window // 2,
    ).permute(0, 2, 3, 1).numpy()  # fmt: skip
    found = emulated(kernel.scheduled, [x, w])
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("names", [("A", "B"), ("B", "A"), ("C", "0")])
def test_names_that_instructions_have_places_for(names: tuple[str, str]) -> None:
    """TVM fills the text of an instruction place by place, the places called A, B and C."""
    mod = module([(24, 256), (256, 64)], wide_product, names=names)  # too few rows for wgmma
    (kernel,) = kernels_of("product", mod, TARGET)
    built = tvm.compile(tvm.IRModule({"main": kernel.scheduled.with_attr("global_symbol", "main")}), TARGET).mod
    source = str(built.imports[0].inspect_source())
    pointers = set(re.findall(r'"r"\(\(\(unsigned \*\)\((\w+) \+ \d+\)\)\[\d\]\)', source))
    assert len(pointers) >= 2
    assert all(f"half {pointer}[" in source for pointer in pointers)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    ("rows", "pointers"), [(1 << 20, False), ((1 << 20) + 8, True), (tvm.tirx.Var("n", "int64"), True)]
)
def test_tensors_longer_than_offsets(rows: object, pointers: bool, arch: str) -> None:
    """Offsets of copies have 32 bits in bytes; of a tensor that may be longer each copy has a pointer of its own."""
    mod = module([(rows, 1024), (1024, 128)], wide_product)
    copied: dict[str, set[bool]] = {}

    def note(call: tvm.ir.Call) -> None:
        if str(getattr(call.op, "name", "")) != "tirx.s_tir.cp_async_raw":
            return
        source = call.args[2]
        moved = str(source.op.name) == "tirx.address_of"
        copied.setdefault(str((source.args[0].source if moved else source.args[0]).name), set()).add(moved)

    for kernel in kernels_of("product", mod, target_of(arch)):
        tvm_ffi.structural_walk(kernel.scheduled.body, [(tvm.ir.Call, note)])
    assert copied == {"x": {pointers}, "w": {False}}
