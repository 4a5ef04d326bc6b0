"""Kernels on memory that ends, or begins, with their arguments."""

from __future__ import annotations

import pytest

from tests.guarded.cases import FAMILIES, TARGETS
from tests.guarded.jobs import Job, levels_of_this_machine, run_jobs
from tests.processes import python

LEVELS = levels_of_this_machine(list(TARGETS))
QUICK = (
    "last_column",
    "reduce",
    "concatenate",
    "detections",
    "pad",
    "softmax",
    "transpose_fused",
    "large_transpose",
    "large_rows",
    "take_fused",
    "matmul_transposed",
    "cast",
)
"""Families in which something was read that is not theirs, and one of each kind beside them."""

READS_TOO_MUCH = """
    import numpy as np
    import tvm
    from tvm import te
    from tests.guarded.pages import call_guarded

    def kernel(shift):
        x = te.placeholder((34,), "float32", "x")
        copy = te.compute((34,), lambda i: x[i + shift], "copy")
        func = te.create_prim_func([x, copy]).with_attr("global_symbol", "kernel")
        return tvm.compile(tvm.IRModule({{"kernel": func}}), "llvm")["kernel"]

    array = np.zeros(34, "float32")
    call_guarded(kernel(0), [array, array], "{place}")
    print("nothing wrong", flush=True)
    call_guarded(kernel({shift}), [array, array], "{place}")
    print("survived")
"""


def _run(families: tuple[str, ...], seeds: range) -> None:
    jobs = [Job(family, seed, level) for family in families for seed in seeds for level in LEVELS]
    for outcome in run_jobs(jobs):
        assert not outcome.faults, f"{outcome.job}: {outcome.faults}"
        assert not outcome.wrong, f"{outcome.job}: {outcome.wrong}"
        assert not outcome.refused, f"{outcome.job}: {outcome.refused}"
        assert not outcome.unproved, f"{outcome.job}: {outcome.unproved}"
        assert outcome.rules, f"{outcome.job}: no kernel ran"


@pytest.mark.skipif(not LEVELS, reason="this machine is no x86 of the levels that are compiled for")
def test_no_kernel_touches_what_is_not_its_own() -> None:
    _run(QUICK, range(1))


@pytest.mark.skipif(not LEVELS, reason="this machine is no x86 of the levels that are compiled for")
def test_extremes_of_rows_that_vectors_do_not_divide() -> None:
    """NaN is looked for in the lanes that are loaded, and in no others."""
    _run(("softmax", "two_results"), range(20, 23))


@pytest.mark.skipif(not LEVELS, reason="this machine is no x86 of the levels that are compiled for")
def test_tiles_beyond_the_end_of_a_padded_matrix() -> None:
    """Of 63 columns, padded to 65, the tile from the 64th on loads nothing."""
    _run(("matmul_of_integers",), range(101, 102))


@pytest.mark.slow
@pytest.mark.skipif(not LEVELS, reason="this machine is no x86 of the levels that are compiled for")
@pytest.mark.parametrize("family", FAMILIES)
def test_no_kernel_of_any_family_touches_what_is_not_its_own(family: str) -> None:
    _run((family,), range(100, 103))


@pytest.mark.parametrize(("shift", "place"), [(1, "end"), (-1, "begin")])
def test_one_element_too_many_is_seen(shift: int, place: str) -> None:
    done = python(READS_TOO_MUCH.format(shift=shift, place=place))
    assert done.returncode < 0, done.stdout + done.stderr
    assert done.stdout.strip() == "nothing wrong"
