"""Operators in the pipeline of a CPU with kernels around an instruction give what they give without."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import relax

from tvm_ext.backends.cpu.embedded import window_cost
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.backends.registry import backend_of
from tvm_ext.embedding.relax.embed_operators import NOTES_ATTRIBUTE, embed_operators
from tvm_ext.errors import OptionError, PerformanceWarning
from tvm_ext.graph.decisions import layout_decisions
from tvm_ext.schedules.cpu.machine import Machine, machine_of

Op = Callable[..., relax.Expr]
nn = relax.op.nn

CASES: dict[str, tuple[Op, list[tuple[tuple[int, ...], str]], list[tuple[tuple[int, ...], str]]]] = {
    "padded": (lambda x, w: nn.conv2d(x, w, padding=1), [((2, 5, 7, 17), "float32")], [((33, 5, 3, 3), "float32")]),
    "strided": (
        lambda x, w: nn.conv2d(x, w, strides=2, padding=3), [((1, 3, 31, 33), "float32")], [((20, 3, 7, 7), "float32")],
    ),
    "grouped": (
        lambda x, w: nn.conv2d(x, w, padding=1, groups=3, dilation=2), [((1, 9, 9, 12), "float32")],
        [((15, 3, 3, 3), "float32")],
    ),
    "depthwise": (
        lambda x, w: nn.conv2d(x, w, padding=1, groups=24), [((1, 24, 9, 11), "float32")], [((24, 1, 3, 3), "float32")],
    ),
    "conv1d": (lambda x, w: nn.conv1d(x, w, padding=1), [((1, 6, 37), "float32")], [((31, 6, 3), "float32")]),
    "conv3d": (lambda x, w: nn.conv3d(x, w), [((1, 4, 5, 6, 9), "float32")], [((17, 4, 2, 3, 3), "float32")]),
    "transposed": (
        lambda x, w: nn.conv1d_transpose(x, w, strides=2, padding=1), [((1, 16, 17), "float32")],
        [((16, 20, 3), "float32")],
    ),
    "NHWC": (
        lambda x, w: nn.conv2d(x, w, padding=1, data_layout="NHWC", kernel_layout="HWIO"),
        [((1, 7, 9, 5), "float32")], [((3, 3, 5, 33), "float32")],
    ),
    "computed weights": (
        lambda x, w: nn.conv2d(x, w, padding=1), [((1, 8, 9, 9), "float32"), ((31, 8, 3, 3), "float32")], [],
    ),
    "product": (lambda x, w: relax.op.matmul(x, w), [((127, 33), "float32")], [((33, 31), "float32")]),
    "capsules": (
        lambda x, w: relax.op.einsum((x, w), "bik,ijdk->bijd"), [((2, 9, 8), "float32")], [((9, 5, 16, 8), "float32")],
    ),
    "attention": (
        lambda x, y: relax.op.einsum((x, y), "bhqd,bkhd->bhqk"),
        [((2, 3, 17, 32), "float32"), ((2, 33, 3, 32), "float32")], [],
    ),
    "int8": (
        lambda x, w: nn.conv2d(x, w, padding=1, out_dtype="int32"), [((1, 6, 9, 17), "int8")],
        [((33, 6, 3, 3), "int8")],
    ),
    "uint8": (
        lambda x, w: nn.conv3d(x, w, padding=1, out_dtype="int32"), [((1, 8, 4, 6, 9), "uint8")],
        [((17, 8, 3, 3, 3), "int8")],
    ),
    "int8 depthwise": (
        lambda x, w: nn.conv2d(x, w, padding=1, groups=17, out_dtype="int32"), [((1, 17, 9, 9), "int8")],
        [((17, 1, 3, 3), "int8")],
    ),
    "a multiple of the channels": (  # lanes would lie between results of other weights
        lambda x, w: nn.conv2d(x, w, padding=1, groups=32, out_dtype="int32"), [((1, 32, 5, 7), "uint8")],
        [((64, 1, 3, 3), "int8")],
    ),
    "padded groups of 17": (  # the outputs of a group do not fit one tile behind lanes that are padded
        lambda x, w: nn.conv2d(x, w, groups=17), [((2, 34, 5, 7), "float32")], [((289, 2, 3, 1), "float32")],
    ),
    "int8 channels last": (
        lambda x, w: nn.conv2d(x, w, data_layout="NHWC", kernel_layout="OHWI", out_dtype="int32"),
        [((1, 5, 7, 68), "uint8")], [((33, 1, 1, 68), "int8")],
    ),
    "int8 product": (
        lambda x, w: relax.op.matmul(x, w, out_dtype="int32"), [((7, 33), "int8")], [((33, 17), "int8")],
    ),
}  # fmt: skip


def draw(shape: tuple[int, ...], dtype: str, seed: int) -> NDArray:
    rng = np.random.default_rng(seed)
    if dtype == "float32":
        return rng.integers(-8, 8, shape).astype(dtype)  # sums of their products are exact
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)


def module(op: Op, inputs: list[Any], constants: list[Any], epilogue: bool = False) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    variables = [relax.Var(f"x{at}", relax.TensorType(shape, dtype)) for at, (shape, dtype) in enumerate(inputs)]
    with builder.function("main", variables):
        with builder.dataflow():
            out = builder.emit(op(*variables, *(relax.const(draw(*item, 7 + at)) for at, item in enumerate(constants))))
            if epilogue:
                out = builder.emit(relax.op.maximum(relax.op.add(out, out), relax.const(3, str(out.ty.dtype))))
            out = builder.emit_output(out)
        builder.emit_func_output(out)
    return builder.get()


def run(mod: tvm.IRModule, inputs: list[Any], **options: Any) -> NDArray:
    target = native_target()
    with target, warnings.catch_warnings():
        warnings.simplefilter("error", PerformanceWarning)  # a rule that fails leaves slow loops
        executable = tvm.compile(mod, target, relax_pipeline=relax.get_pipeline("tvm_ext", winograd=False, **options))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    given = [tvm.runtime.tensor(draw(*item, at)) for at, item in enumerate(inputs)]
    return machine["main"](*given).numpy()


@pytest.mark.parametrize("epilogue", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_kernels_around_an_instruction_compute_the_same(case: str, epilogue: bool) -> None:
    op, inputs, constants = CASES[case]
    mod = module(op, inputs, constants, epilogue)
    np.testing.assert_array_equal(run(mod, inputs, embed="all"), run(mod, inputs, embed="off"))


@pytest.mark.parametrize("case", ["padded", "capsules", "int8"])
def test_every_operator_is_noted_with_its_instruction(case: str) -> None:
    target = native_target()
    offers = backend_of(target).instructions(target)
    if not any(offer.plan for offer in offers):
        pytest.skip("no kernels are made of this CPU's instructions")
    embedded = embed_operators(offers)(module(*CASES[case]))
    assert "cycles" in str(embedded.attrs[NOTES_ATTRIBUTE])
    (decision,) = layout_decisions(embedded)
    instruction = dict(decision.plan)["instruction"]
    assert decision.form == "embedded"
    assert instruction in {offer.instruction.name for offer in offers}
    assert instruction in str(embedded.attrs[NOTES_ATTRIBUTE])
    kept = embed_operators(offers, lambda operator: 1.0)(module(*CASES[case]))
    assert not layout_decisions(kept)
    assert "not embedded" in str(kept.attrs[NOTES_ATTRIBUTE])
    assert "without" in str(kept.attrs[NOTES_ATTRIBUTE])


def test_rules_of_windows_of_bytes_keep_what_they_are_faster_at() -> None:
    """All embeddings are asked for, but none that is known to be slower; a window of one dimension has no rule."""
    machine, offers = cpu("znver4")
    window = embed_operators(offers, window_cost(machine), margin=1.0)

    def noted(op: Op, *shapes: tuple[int, ...]) -> str:
        data, weights = ((shape, dtype) for shape, dtype in zip(shapes, ("uint8", "int8"), strict=True))
        return str(window(module(op, [data], [weights])).attrs[NOTES_ATTRIBUTE])

    square = noted(lambda x, w: nn.conv2d(x, w, groups=64, out_dtype="int32"), (1, 64, 30, 30), (64, 1, 3, 3))
    assert "not embedded: x86." in square
    line = noted(lambda x, w: nn.conv1d(x, w, groups=64, out_dtype="int32"), (1, 64, 300), (64, 1, 3))
    assert "not embedded" not in line
    several = noted(lambda x, w: nn.conv2d(x, w, groups=32, out_dtype="int32"), (1, 32, 17, 19), (64, 1, 3, 3))
    assert "not embedded" not in several
    for extents, kernel in (((1, 56, 56, 32), (3, 3, 32, 1)), ((1, 14, 14, 240), (5, 5, 240, 1))):
        last = {"data_layout": "NHWC", "kernel_layout": "HWOI", "groups": extents[3], "out_dtype": "int32"}
        assert "not embedded: x86." in noted(lambda x, w, last=last: nn.conv2d(x, w, **last), extents, kernel)


def test_sums_of_bytes_stay_in_registers() -> None:
    """LLVM once loaded a value for each row of a tile first, and wrote sums to memory in the innermost loop for it."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": "znver4", "num-cores": 1})
    mod = module(*CASES["int8 channels last"])
    big = module(CASES["int8 channels last"][0], [((1, 28, 28, 128), "uint8")], [((128, 1, 1, 128), "int8")])
    for each in (mod, big):
        with target:
            lowered = tvm.compile(each, target, relax_pipeline=relax.get_pipeline("tvm_ext", embed="all"))
        text = next(text for part in imports_of(lowered.mod) if "vpdpbusd" in (text := str(part.inspect_source("asm"))))
        lines = text.splitlines()
        places = [at for at, line in enumerate(lines) if "vpdpbusd" in line]
        inside = lines[places[0] : places[-1]]
        assert len(places) >= 4
        assert not [line for line in inside if "zmm" in line and "mov" in line and "(%rsp)" in line.split(",")[-1]]


def cpu(name: str) -> tuple[Machine, list[Any]]:
    """A CPU, whether it is here or not, and its instructions."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": name, "num-cores": 1})
    return machine_of(target), list(backend_of(target).instructions(target))


def imports_of(module: Any) -> list[Any]:
    """A module and all that it imports."""
    return [module, *(part for imported in module.imports for part in imports_of(imported))]


def test_operators_that_cannot_be_embedded_keep_the_ordinary_route() -> None:
    target = native_target()
    offers = backend_of(target).instructions(target)
    op, inputs = (lambda x, y: relax.op.matmul(x, y)), [((3, 4), "float64"), ((4, 5), "float64")]
    kept = embed_operators(offers)(module(op, inputs, []))
    assert "not embedded" in str(kept.attrs[NOTES_ATTRIBUTE])
    assert "float64" in str(kept.attrs[NOTES_ATTRIBUTE])


def test_the_reason_is_that_of_the_kernels_that_were_refused() -> None:
    """Instructions fit 17 groups of 17 outputs; what cannot be done is a kernel around them."""
    _, offers = cpu("znver4")
    kept = embed_operators(offers)(module(*CASES["padded groups of 17"]))
    note = str(kept.attrs[NOTES_ATTRIBUTE])
    assert "results behind the lanes of x86.fma.512.lanes, some of which are padding, do not fit one tile" in note
    assert "the target makes no kernels" not in note


def test_the_option_is_checked() -> None:
    with pytest.raises(OptionError, match="embed"):
        relax.get_pipeline("tvm_ext", embed="some")
