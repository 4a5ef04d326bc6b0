"""Kernels on AMX tiles, played by an emulated processor, against numpy and the ordinary pipeline."""

from __future__ import annotations

import shutil
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import relax, tirx

from tests.embedding.test_pipeline import draw, module, run
from tests.embedding.tiles.processor import TILE_CPU, emulated, lowered, processor
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.embedding.relax.embed_operators import NOTES_ATTRIBUTE
from tvm_ext.passes.vector_code import has_blocks
from tvm_ext.target import resolve_target

nn = relax.op.nn

FEATURES = {str(name) for name in tvm.target.codegen.llvm_get_cpu_features(native_target())}

needs_avx512 = pytest.mark.skipif(
    shutil.which("gcc") is None or not {"avx512f", "avx512vnni"} <= FEATURES,
    reason="needs gcc, and what else the kernels for Sapphire Rapids use",
)


def product(x: Any, w: Any) -> Any:
    return relax.op.matmul(x, w, out_dtype="int32")


CASES: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "whole tiles": (product, [((64, 128), "uint8")], [((128, 96), "int8")]),
    "odd product": (product, [((33, 71), "int8")], [((71, 31), "int8")]),
    "three images": (product, [((3, 33, 128), "uint8")], [((128, 96), "int8")]),
    "window": (
        lambda x, w: nn.conv2d(x, w, padding=1, out_dtype="int32"), [((1, 64, 14, 15), "uint8")],
        [((48, 64, 3, 3), "int8")],
    ),
    "dilated and strided": (
        lambda x, w: nn.conv2d(x, w, strides=2, dilation=2, out_dtype="int32"), [((2, 64, 17, 35), "int8")],
        [((31, 64, 3, 3), "int8")],
    ),
    "channels last": (
        lambda x, w: nn.conv2d(x, w, padding=1, out_dtype="int32", data_layout="NHWC", kernel_layout="HWIO"),
        [((2, 9, 17, 33), "int8")], [((3, 3, 33, 40), "int8")],
    ),
    "computed weights": (product, [((127, 65), "uint8"), ((65, 127), "int8")], []),
}  # fmt: skip


def play(mod: tvm.IRModule, given: list[NDArray]) -> tuple[NDArray, int]:
    """Run a module on the emulated processor: the result, and how many products of tiles it took."""
    library = processor()
    before, target = library.emulated_products(), native_target()
    with target:
        executable = tvm.compile(emulated(mod), target, relax_pipeline=tvm.transform.Sequential([]))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(values) for values in given)).numpy()
    assert library.emulated_faults() == 0
    return result, library.emulated_products() - before


@needs_avx512
@pytest.mark.parametrize("epilogue", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_kernels_on_tiles_compute_the_same(case: str, epilogue: bool) -> None:
    op, inputs, constants = CASES[case]
    mod = module(op, inputs, constants, epilogue)
    mine = lowered(mod, embed="all")
    assert "x86.amx." in str(mine.attrs[NOTES_ATTRIBUTE])
    result, products = play(mine, [draw(*item, at) for at, item in enumerate(inputs)])
    assert products > 0
    np.testing.assert_array_equal(result, run(mod, inputs, embed="off"))


@needs_avx512
@pytest.mark.parametrize(("rows", "steps", "columns"), [(32, 128, 48), (31, 101, 47), (16, 33, 127), (1, 64, 64)])
def test_products_of_bfloat16_on_tiles(rows: int, steps: int, columns: int) -> None:
    rng = np.random.default_rng(rows)
    left, right = (rng.integers(-9, 9, shape).astype(ml_dtypes.bfloat16) for shape in ((rows, steps), (steps, columns)))
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, steps), "bfloat16"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.matmul(x, relax.const(right), out_dtype="float32"))
        builder.emit_func_output(out)
    mine = lowered(builder.get(), embed="all")
    result, products = play(mine, [left])
    np.testing.assert_array_equal(result, left.astype("float32") @ right.astype("float32"))
    assert products > 0 or rows == 1  # a single row is faster as a vector


@needs_avx512
def test_a_process_without_permission_is_told_so() -> None:
    op, inputs, constants = CASES["whole tiles"]
    mine = lowered(module(op, inputs, constants), embed="all")
    library = processor()
    library.emulated_permit(-1)
    try:
        with pytest.raises(RuntimeError, match=r"does not give this process AMX tiles"):
            play(mine, [draw(*item, at) for at, item in enumerate(inputs)])
    finally:
        library.emulated_permit(0)


@pytest.mark.parametrize("case", ["whole tiles", "window"])
def test_machine_code_keeps_results_in_tiles(case: str) -> None:
    mine = lowered(module(*CASES[case]), embed="all")
    (kernel,) = (
        func for name, func in mine.functions.items()
        if isinstance(func, tirx.PrimFunc) and "embedded" in name.name_hint
    )  # fmt: skip
    assert not has_blocks(kernel)
    compiled = tvm.compile(tvm.IRModule({"f": kernel.with_attr("global_symbol", "f")}), resolve_target(TILE_CPU))
    code = [line.split()[0] for line in compiled.mod.inspect_source("asm").splitlines() if line.startswith("\t")]
    # Each tile that is loaded is multiplied more than once, and only sums are stored.
    assert code.count("tdpbusd") * 2 >= code.count("tileloadd") * 3 / 2 > 0
    assert 0 < code.count("tilestored") < code.count("tileloadd")
    assert {"ldtilecfg", "tilezero", "tilerelease"} <= set(code)


def test_only_who_asks_for_embeddings_gets_tiles() -> None:
    mod = lowered(module(lambda x, w: nn.conv3d(x, w, out_dtype="int32"), [((1, 64, 3, 6, 18), "uint8")],
                         [((64, 64, 3, 3, 3), "int8")]))  # fmt: skip
    assert "amx" not in str(mod.attrs[NOTES_ATTRIBUTE])
