"""The CPU of this machine: its flags have the last word, whatever name LLVM guesses."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import tvm

from tests.cpu import IS_X86
from tvm_ext.backends.cpu import target as cpu_target
from tvm_ext.backends.cpu.target import native_target, warn_if_baseline
from tvm_ext.errors import PerformanceWarning
from tvm_ext.schedules.cpu.machine import forget_machines, machine_of
from tvm_ext.schedules.cpu.native_cpu import NativeCpu, describe, native_cpu
from tvm_ext.system import threads
from tvm_ext.system.cpu_features import FEATURES
from tvm_ext.system.host import processor_flags
from tvm_ext.target import resolve_target

needs_x86 = pytest.mark.skipif(not IS_X86, reason="names and flags of x86")


def flags_of(name: str) -> set[str]:
    """The flags that a CPU of a name shows."""
    cpu = tvm.target.Target({"kind": "llvm", "mcpu": name})
    features = {str(found) for found in tvm.target.codegen.llvm_get_cpu_features(cpu)}
    return {"fpu", "sse2"} | {flag for flag, feature in FEATURES.items() if feature in features}


@needs_x86
@pytest.mark.parametrize("name", ["x86-64", "nehalem", "haswell", "znver3", "skylake-avx512", "sapphirerapids"])
def test_a_cpu_that_is_what_it_is_called(name: str) -> None:
    assert describe(name, flags_of(name)) == NativeCpu(name)


@needs_x86
def test_instructions_that_are_withheld() -> None:
    found = describe("skylake-avx512", {flag for flag in flags_of("skylake-avx512") if not flag.startswith("avx512")})
    assert found.name == "skylake-avx512"
    assert {"-avx512f", "-avx512bw", "-avx512vl"} <= set(found.features)
    assert not [feature for feature in found.features if feature.startswith("+")]
    target = resolve_target({"kind": "llvm", "mcpu": found.name, "mattr": list(found.features)})
    assert machine_of(target).isa == "avx2"


@needs_x86
def test_a_server_that_a_hypervisor_calls_a_desktop() -> None:
    found = describe("rocketlake", flags_of("rocketlake") | {"amx_tile", "amx_int8", "amx_bf16", "avx512_bf16"})
    assert found.name == "sapphirerapids"
    assert "-avx512fp16" in found.features
    assert (
        machine_of(resolve_target({"kind": "llvm", "mcpu": found.name, "mattr": list(found.features)})).isa == "avx512"
    )


@needs_x86
def test_a_cpu_that_llvm_does_not_know() -> None:
    found = describe("generic", flags_of("haswell"))
    assert {"+avx2", "+fma", "+f16c"} <= set(found.features)
    assert machine_of(resolve_target({"kind": "llvm", "mcpu": found.name, "mattr": list(found.features)})).isa == "avx2"


@needs_x86
def test_leading_zeros_are_not_counted_by_an_instruction_that_is_withheld() -> None:
    """A CPU without it takes it for another one, with another result, and none is refused."""
    assert describe("haswell", flags_of("haswell") - {"abm"}) == NativeCpu("haswell", ("-lzcnt",))


def test_without_flags_the_guess_stands() -> None:
    assert describe("generic", set()) == NativeCpu("generic")
    assert describe("generic", {"unheard_of"}) == NativeCpu("generic")


def test_the_target_of_this_machine_has_what_its_flags_say() -> None:
    flags = processor_flags()
    if not flags:
        pytest.skip(f"{platform.system()} has no /proc/cpuinfo")
    has = {str(name) for name in tvm.target.codegen.llvm_get_cpu_features(native_target())}
    known = {feature for flag, feature in FEATURES.items() if flag in flags}
    assert has & set(FEATURES.values()) <= known
    assert resolve_target("native").export() == native_target().export()


@needs_x86
def test_a_host_without_avx_is_told_that_speed_suffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_target, "native_cpu", lambda: NativeCpu("nehalem"))
    with pytest.warns(
        PerformanceWarning, match="to LLVM nehalem, has no AVX2 and FMA, .* speed suffers, results do not"
    ):
        warn_if_baseline(native_target())


def test_a_part_of_a_processor_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_target, "cpu_quota", lambda: 0.5)
    with pytest.warns(PerformanceWarning, match="allows 0.5 of a processor"):
        warn_if_baseline(native_target())
    monkeypatch.setattr(cpu_target, "cpu_quota", lambda: 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_baseline(native_target())


@pytest.fixture
def nothing_was_said() -> Iterator[None]:
    """Begin as a process does that has not warned of idle cores, and leave it so."""
    cpu_target._warn_of_idle_cores.cache_clear()
    yield
    cpu_target._warn_of_idle_cores.cache_clear()


@pytest.mark.usefixtures("nothing_was_said")
def test_one_core_of_several_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    target = native_target()
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {5})
    with pytest.warns(PerformanceWarning, match="may run on one of the 8 processors .* results are right"):
        warn_if_baseline(target)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_baseline(target)


@pytest.mark.usefixtures("nothing_was_said")
@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"OMP_NUM_THREADS": "1"}, True),
        ({"OMP_NUM_THREADS": "4"}, False),
        ({"OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1"}, False),  # who says it to TVM means it
        ({}, False),
    ],
)
def test_a_variable_that_leaves_cores_idle_is_told(
    settings: dict[str, str], told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = native_target()
    for name in ("OMP_NUM_THREADS", "TVM_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cpu_target, "physical_cores", lambda: 4)
    monkeypatch.setattr(threads, "physical_cores", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {0, 1, 2, 3})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_if_baseline(target)
    assert [str(warning.message).startswith("OMP_NUM_THREADS=1 leaves TVM one of 4 cores") for warning in caught] == [
        True
    ] * told


def test_one_processor_computes_what_several_do(tmp_path: Path) -> None:
    """A process that is kept to one processor, of which TVM is told nothing."""
    script = tmp_path / "one.py"
    script.write_text(
        "import numpy as np, tvm_ext\n"
        "from tvm import relax\n"
        "from tests.schedules.kernels import graph\n"
        "weight = np.random.default_rng(0).standard_normal((129, 257)).astype('float32')\n"
        "module = graph(lambda b, x: b.emit(relax.op.matmul(x, relax.const(weight))), [((65, 129), 'float32')])\n"
        "x = np.random.default_rng(1).standard_normal((65, 129)).astype('float32')\n"
        "(result,) = tvm_ext.compile(module).run([x]).values()\n"
        "np.testing.assert_allclose(result, x.astype('float64') @ weight, rtol=1e-4, atol=1e-4)\n",
        encoding="utf-8",
    )
    kept = os.sched_getaffinity(0)
    if len(kept) == 1:
        pytest.skip("this process is kept to one processor")
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    environment["PYTHONPATH"] = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300, env=environment, check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, {min(kept)}),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("may run on one of the") == 1


def test_a_machine_is_known_by_its_native_name() -> None:
    forget_machines()
    assert native_cpu().name == str(native_target().attrs["mcpu"])
