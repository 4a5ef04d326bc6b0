"""Sizes as people write them, and modules that take too much."""

from __future__ import annotations

import pytest
import tvm

import tvm_ext
from tests.modules import Chain, Dynamic, Mlp
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
    with pytest.raises(MemoryLimitError, match=r"limit 1,000 B: the best reachable peak is 3\.0 KiB"):
        tvm_ext.compile(Chain, memory=memory, memory_limit=1000)


def test_the_message_says_that_patches_are_off() -> None:
    with pytest.raises(MemoryLimitError, match=r"best reachable peak .* patches='auto' may need less than 'off'"):
        tvm_ext.compile(Chain, memory="optimal", patches="off", memory_limit=1000)


def test_enough_memory() -> None:
    assert tvm_ext.compile(Mlp, memory="optimal", memory_limit="1MB").metadata["decisions"]["memory"]["main"]["optimal"]


def test_sizes_known_at_run_time_only() -> None:
    with pytest.raises(MemoryLimitError, match="--input-shape"):
        tvm_ext.compile(Dynamic, memory="optimal", memory_limit="1MB")


def test_the_module_is_left_as_it_was() -> None:
    before = Chain.script()
    with pytest.raises(MemoryLimitError):
        tvm_ext.compile(Chain, memory_limit=1)
    assert Chain.script() == before
    assert isinstance(Chain, tvm.IRModule)
