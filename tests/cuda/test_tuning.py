"""Tuning for CUDA, with a cost model in the place of the GPU: databases, tuners, compilations, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm.script import relax as R

import tvm_ext
from scripts.cuda.kernels import kernels_of, target_of
from scripts.cuda.rehearsed_measurer import RehearsedMeasurer
from tests.cuda.test_tunable_rules import module
from tvm_ext.backends.cuda.toolkit import find_toolkit
from tvm_ext.errors import TargetError
from tvm_ext.options import PipelineOptions
from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuning import kernels_to_tune, tune

TARGET = target_of("sm_90")


def model(dtype: str = "float32") -> tvm.IRModule:
    weights = np.random.default_rng(0).standard_normal((40, 48)).astype(dtype)
    return module(
        [(33, 48)], lambda x: R.nn.softmax(R.nn.relu(R.matmul(x, R.const(weights.T), out_dtype="float32")), -1), dtype
    )


@pytest.mark.parametrize(
    "name", ["evolution_shared", "chameleon", "glimpse", pytest.param("chameleon_validity", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_tuned_and_compiled(name: str, dtype: str, tmp_path: Path) -> None:
    """Records are found by a compilation, in which nothing is left undone that the trace could not do."""
    if dtype == "float16" and name != "evolution_shared":
        pytest.skip("one tuner is enough for the other rule")
    row, measurer = recipe(name, batch=8, initial=8), RehearsedMeasurer(TARGET)
    result = tune(model(dtype), TARGET, tmp_path, 20, row, batch=8, measurer=measurer)
    assert result.trials == 20
    assert all(kernel.best is not None for kernel in result.kernels)
    scheduled = [kernel.scheduled for kernel in kernels_of("tuned", model(dtype), TARGET, work_dir=str(tmp_path))]
    assert not any("tvm_ext.schedule_rule" in (func.attrs or {}) for func in scheduled)
    text = "".join(map(str, scheduled))
    assert "tvm_ext.barriers_behind_sums" not in text
    assert "tvm_ext.resident_blocks" not in text
    assert ("ldmatrix" in text) == (dtype == "float16")
    artifact = tvm_ext.compile(model(dtype), TARGET, work_dir=tmp_path)
    assert artifact.metadata["device"] == "cuda"


def test_a_run_goes_on(tmp_path: Path) -> None:
    first = tune(model(), TARGET, tmp_path, 6, recipe("random"), batch=3, measurer=RehearsedMeasurer(TARGET))
    second = tune(model(), TARGET, tmp_path, 12, recipe("random"), batch=3, measurer=RehearsedMeasurer(TARGET))
    assert (first.trials, second.resumed, second.trials) == (6, 6, 6)


def test_candidates_are_machine_code(tmp_path: Path) -> None:
    toolkit = find_toolkit()
    if toolkit is None:
        pytest.skip("no CUDA compiler here")
    measurer = RehearsedMeasurer(TARGET, toolkit, compiled=2)
    tune(model("float16"), TARGET, tmp_path, 4, recipe("random"), batch=4, measurer=measurer)
    assert measurer.counts.failed == 0


def test_without_the_gpu_it_is_refused() -> None:
    device = tvm.cuda(0)
    if device.exist and device.compute_version == "10.0":
        pytest.skip("this machine has it")
    with pytest.raises(TargetError, match=r"no NVIDIA GPU|arch sm_|is of sm_"):
        kernels_to_tune(model(), target_of("sm_100"))
    assert kernels_to_tune(model(), TARGET, here=False, options=PipelineOptions(precision="float16"))
