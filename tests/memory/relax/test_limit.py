"""Sizes as people write them, and modules that take too much."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax, tirx

import tvm_ext
from tests.modules import Chain, Mlp
from tvm_ext.errors import MemoryLimitError, OptionError
from tvm_ext.graph.units import parse_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1),
        (512, 512),
        ("256KB", 256_000),
        ("256 kb", 256_000),
        ("256KiB", 262_144),
        ("1.5MiB", 1_572_864),
        ("2GB", 2_000_000_000),
        ("1 TiB", 1 << 40),
        (" 7 B ", 7),
    ],
)
def test_sizes(text: str | int, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "KB",
        "0",
        "-1",
        "1e6",
        "1 KBB",
        "nan",
        0,
        "0.5",
        "9" * 400,
        "9e9GB",
        10**400,
        pytest.param(10**5000, id="5000 digits"),
        2**63,
    ],
)
def test_what_is_no_size(text: str | int) -> None:
    with pytest.raises(OptionError, match="256KB"):
        parse_bytes(text)


@pytest.mark.parametrize("memory", ["stock", "arena", "optimal"])
def test_the_message_names_the_best_reachable_peak(memory: str) -> None:
    # Two results of 1 KiB are alive at once, beside the one that is returned.
    with pytest.raises(MemoryLimitError, match=r"limit 1,000 B: the best reachable peak is 3\.0 KiB") as error:
        tvm_ext.compile(Chain, memory=memory, memory_limit=1000)
    assert ("memory='optimal' may need less" in str(error.value)) == (memory != "optimal")
    assert "or raise the limit to 3072B" in str(error.value)
    assert tvm_ext.compile(Chain, memory=memory, memory_limit="3072B")


def test_the_message_says_that_patches_are_off() -> None:
    with pytest.raises(MemoryLimitError, match=r"best reachable peak .* patches='auto' may need less than 'off'"):
        tvm_ext.compile(Chain, memory="optimal", patches="off", memory_limit=1000)


def test_enough_memory() -> None:
    assert tvm_ext.compile(Mlp, memory="optimal", memory_limit="1MB").metadata["decisions"]["memory"]["main"]["optimal"]


def half_open() -> tvm.IRModule:
    """Two results, one of which has an open extent; 16 KiB of the other are known."""
    rows, builder = tirx.Var("n", "int64"), relax.BlockBuilder()
    given = [relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in (("x", (rows, 8)), ("z", (64, 64)))]
    with builder.function("main", given):
        with builder.dataflow():
            ends = [builder.emit(relax.op.nn.softmax(builder.emit(relax.op.nn.softmax(x)))) for x in given]
            result = builder.emit_output(relax.Tuple(ends))
        builder.emit_func_output(result)
    return relax.transform.Normalize()(builder.get())


@pytest.mark.parametrize("limit", ["1MB", "1KB"])
def test_sizes_known_at_run_time_only(limit: str | int) -> None:
    """Of other tensors that take more than the limit nothing is said: no peak is known."""
    with pytest.raises(MemoryLimitError, match=r"run time; give every input a shape \(--input-shape\)"):
        tvm_ext.compile(half_open(), memory="optimal", memory_limit=limit)


def test_the_module_is_left_as_it_was() -> None:
    before = Chain.script()
    with pytest.raises(MemoryLimitError):
        tvm_ext.compile(Chain, memory_limit=1)
    assert Chain.script() == before
    assert isinstance(Chain, tvm.IRModule)
