from __future__ import annotations

import pytest
import tvm

from tvm_ext.backends.cpu.here import check_runs_here
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.errors import TargetError


def test_a_cpu_that_cannot_run_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what kernels are made of counts, not what code is tuned for."""
    here = {"avx2", "sse4.2"}
    added: set[str] = {"fast-gather", "waitpkg"}

    def features(target: tvm.target.Target) -> list[str]:
        return sorted(here | added if target.attrs["mcpu"] == "x86-64-v4" else here)

    monkeypatch.setattr(tvm.target.codegen, "llvm_get_cpu_features", features)
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v4"})
    check_runs_here(target)
    added |= {"avx512f", "avx512bw"}
    with pytest.raises(TargetError, match=r"needs avx512bw, avx512f, which this machine's .* lacks; .*--tracker"):
        check_runs_here(target)
    check_runs_here(native_target())
