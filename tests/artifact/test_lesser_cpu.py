"""Models that were compiled for a CPU with instructions that this machine's lacks are refused before they run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tvm_ext
from tests.modules import Mlp, arguments
from tvm_ext.artifact import device_errors
from tvm_ext.artifact.compiled_model import load
from tvm_ext.artifact.device_errors import unfit_cpu
from tvm_ext.errors import TargetError
from tvm_ext.system.cpu_features import missing_features
from tvm_ext.system.host import family_of, processor_flags

IS_X86 = "fpu" in processor_flags()
SSE = frozenset({"fpu", "pni", "ssse3", "sse4_1", "sse4_2", "popcnt"})


@pytest.mark.skipif(not IS_X86, reason="names of x86 CPUs")
def test_a_host_without_avx_refuses_code_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = {"kind": "llvm", "mcpu": "haswell"}
    compiled = tvm_ext.compile(Mlp, target)
    folder = compiled.save(tmp_path / "model")
    monkeypatch.setattr(device_errors, "processor_flags", lambda: SSE)
    for model in (compiled, load(folder)):
        with pytest.raises(
            TargetError, match=r"compiled for haswell, whose avx, avx2, .*fma, lzcnt, movbe this machine's CPU lacks"
        ):
            model.run(arguments(Mlp))
    assert tvm_ext.compile(Mlp, {"kind": "llvm", "mcpu": "nehalem"}).run(arguments(Mlp))


@pytest.mark.skipif(not IS_X86, reason="names of x86 CPUs")
def test_features_that_a_target_is_without_are_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_errors, "processor_flags", lambda: SSE)
    assert "avx512f" in unfit_cpu({"kind": "llvm", "mcpu": "skylake-avx512"})
    assert not unfit_cpu({"kind": "llvm", "mcpu": "x86-64-v2"})
    assert not unfit_cpu({"kind": "llvm", "mcpu": "sandybridge", "mattr": ["-avx"]})
    assert "fma4" in unfit_cpu({"kind": "llvm", "mcpu": "bdver1"})
    assert "sse4a" in unfit_cpu({"kind": "llvm", "mcpu": "barcelona"})  # bytes are moved by it on AMD's CPUs
    assert "compiled for a CPU with +avx2, whose avx, avx2 " in unfit_cpu({"kind": "llvm", "mattr": ["+avx2"]})
    assert "avx512f" in unfit_cpu({"kind": "llvm", "mcpu": "skylake-avx512", "mtriple": "amd64-linux-gnu"})
    assert not unfit_cpu({"kind": "llvm"})
    monkeypatch.setattr(device_errors, "processor_flags", frozenset)
    assert not unfit_cpu({"kind": "llvm", "mcpu": "skylake-avx512"})  # nothing is known of this machine


@pytest.mark.skipif(not IS_X86, reason="another architecture than that of the targets")
@pytest.mark.filterwarnings("ignore:target llvm names no processor")
@pytest.mark.parametrize(
    "triple", ["aarch64-linux-gnu", "wasm32-unknown-unknown", "x86_64-pc-windows-msvc", "i686-linux-gnu"]
)
def test_code_for_another_machine_is_refused_before_it_is_loaded(
    triple: str, capfd: pytest.CaptureFixture[str]
) -> None:
    compiled = tvm_ext.compile(Mlp, {"kind": "llvm", "mtriple": triple, "num-cores": 2})
    capfd.readouterr()
    with pytest.raises(TargetError, match=rf"compiled for {triple}, and this machine is x86_64 Linux; run it on such"):
        compiled.run(arguments(Mlp))
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(not IS_X86, reason="another architecture than that of the targets")
@pytest.mark.skipif(shutil.which("aarch64-linux-gnu-g++") is None, reason="no cross compiler")
def test_a_library_for_another_machine_says_for_which(tmp_path: Path) -> None:
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}
    folder = tvm_ext.compile(Mlp, target).save(tmp_path / "model")
    with pytest.raises(TargetError, match=r"model.so cannot be loaded on this machine: .* compiled for aarch64-linux"):
        load(folder)


@pytest.mark.parametrize(
    ("triple", "family"),
    [
        ("armv7l-linux-gnueabihf", "arm"),
        ("arm-linux-gnueabi", "arm"),
        ("arm64-linux-gnu", "aarch64"),
        ("i686-linux-gnu", "i386"),
        ("amd64-linux-gnu", "x86_64"),
    ],
)
def test_names_of_one_architecture(triple: str, family: str) -> None:
    assert family_of(triple) == family


def test_code_for_this_machine_runs_here() -> None:
    compiled = tvm_ext.compile(Mlp)
    assert not unfit_cpu(compiled.metadata["target"])
    assert compiled.run(arguments(Mlp))


def test_only_what_flags_stand_for_counts() -> None:
    assert missing_features({"avx2", "prefer-256-bit", "avx512f"}, frozenset({"fpu", "avx2"})) == ["avx512f"]
    assert missing_features({"avx2"}, frozenset({"avx512f"})) == []  # not the flags of a whole CPU
