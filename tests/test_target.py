from __future__ import annotations

import contextlib
import json
import os
import warnings
from typing import Any

import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

import tvm_ext
from tvm_ext.backends.cpu.target import native_target, warn_if_baseline
from tvm_ext.errors import PerformanceWarning, TargetError
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.cpu.native_cpu import native_cpu
from tvm_ext.system.threads import physical_cores
from tvm_ext.target import resolve_target


@pytest.mark.parametrize("target", [None, "native"])
def test_native_is_this_cpu(target: str | None) -> None:
    resolved = resolve_target(target)
    assert resolved.kind.name == "llvm"
    assert str(resolved.attrs["mcpu"]) == native_cpu().name
    assert int(resolved.attrs["num-cores"]) == physical_cores()


def test_physical_cores_are_among_those_that_may_be_used() -> None:
    assert 1 <= physical_cores() <= len(os.sched_getaffinity(0))


def test_kinds_tags_dictionaries_json_and_targets() -> None:
    assert resolve_target("llvm").kind.name == "llvm"
    assert str(resolve_target("nvidia/nvidia-a100").attrs["arch"]) == "sm_80"
    config = {"kind": "llvm", "mcpu": "skylake-avx512"}
    assert str(resolve_target(config).attrs["mcpu"]) == "skylake-avx512"
    tvm.ir.assert_structural_equal(resolve_target(json.dumps(config)), resolve_target(config))
    given_target = native_target()
    assert resolve_target(given_target) is given_target


def test_other_architectures() -> None:
    arm = resolve_target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"})
    assert str(arm.attrs["mtriple"]) == "aarch64-linux-gnu"


@pytest.mark.parametrize("name", ["apple-m1", "apple-m2", "apple-m4", "grace", "neoverse-v1", "cortex-a76"])
def test_names_that_llvm_knows_as_another(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    resolved = resolve_target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": name})
    assert machine_of(resolved).dot_product in ("sdot", "sudot")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "config",
    [
        {"mcpu": "skylake-avx512", "mattr": ["-avx512bw"]},
        {"mcpu": "x86-64", "mattr": ["+avx512f", "+avx512vl"]},
        {"mcpu": "znver4", "mattr": ["-avx512vnni,-avx512bw"], "num-cores": 3},
    ],
)
def test_halves_of_avx512_that_llvm_has_no_code_for(config: dict[str, Any]) -> None:
    """LLVM cannot select a comparison of 16 float16 with AVX512VL and without AVX512BW, and ends the process."""
    target = resolve_target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", **config})
    features = set(map(str, tvm.target.codegen.llvm_get_cpu_features(target)))
    assert "avx512f" in features
    assert "avx512vl" not in features
    assert target.attrs.get("num-cores") == config.get("num-cores")
    x = relax.Var("x", relax.TensorType((127, 32), "float16"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.less(x, x)))
    assert tvm_ext.compile(builder.get(), target)


def test_host_code_of_a_gpu_is_for_this_cpu() -> None:
    host = resolve_target({"kind": "cuda", "arch": "sm_90"}).host
    tvm.ir.assert_structural_equal(host, native_target())
    own = resolve_target({"kind": "cuda", "arch": "sm_90", "host": {"kind": "llvm", "mcpu": "skylake"}}).host
    assert str(own.attrs["mcpu"]) == "skylake"


def test_host_code_of_hexagon_is_for_hexagon() -> None:
    resolved = resolve_target("qcom/hexagon-v68")
    assert resolved.host.kind.name == "hexagon"
    assert str(resolved.host.attrs["mcpu"]) == "hexagonv68"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("lvm", "unknown target 'lvm': did you mean llvm"),
        ("", "unknown target ''"),
        ("llvm\n", "did you mean llvm"),
        ("nvidia/nvidia-a1000", "did you mean nvidia/nvidia-a100"),
        ("sm_90", '"arch": "sm_90"'),
        ("SM90a", '"arch": "sm_90"'),
        ("hexagon-v65", "did you mean hexagon-v66 or hexagon-v67 or hexagon-v68"),
        ("HEXAGON-V67t", "did you mean hexagon-v67"),
        ("llvm -mcpu=skylake -num-cores=4", '{"kind": "llvm", "mcpu": "skylake", "num-cores": 4}'),
        ("llvm -mattr=+avx2,+fma -num-cores=4", r'"mattr": \["\+avx2", "\+fma"\], "num-cores": 4}'),
        ({"kind": "llvm", "fast-math": True}, "field fast-math: kernels would give wrong values with it"),
        ({"kind": "llvm", "mcpu": "haswell", "fast-math-reassoc": True}, "field fast-math-reassoc: kernels would"),
        ({"kind": "cuda", "arch": "sm_90", "host": {"kind": "llvm", "fast-math-nnan": True}}, "field fast-math-nnan"),
        ('{"kind": ', "looks like JSON but cannot be parsed"),
        ('{"a":' * 100_000, "looks like JSON but cannot be parsed"),
        ({}, 'Field "kind" is not found'),
        ({"kind": "nope"}, 'Target kind "nope" is not defined; known kinds are c, cuda'),
        ({"kind": "llvm", "nope": 1}, "Unknown config option 'nope'"),
        ({"kind": "llvm", "mcpuu": "znver4"}, r"Unknown config option 'mcpuu'.*; did you mean 'mcpu'\?"),
        ({"kind": "llvm", "mcpu": 5}, "target field mcpu: 5 is not a string$"),
        ({"kind": "llvm", "num-cores": "2"}, 'target field num-cores: "2" is not a whole number$'),
        ({"kind": "llvm", "mattr": "+fma"}, 'field mattr: "\\+fma" is not a list of strings, such as \\["\\+avx2",'),
        ({"kind": "llvm", "mcpu": "skylake", "host": {"kind": "llvm", "mcpu": 3}}, "field mcpu: 3 is not a string"),
        ({"kind": "llvm", "mcpu": "haswell", "mattr": ["avx2"]}, "'avx2' does not say .* write '\\+avx2' or '-avx2'"),
        ({"kind": "llvm", "mcpu": "skylake", "mattr": ["+avx512f,-avx2"]}, "\\+avx512f contradicts -avx2"),
        ({"kind": "llvm", "mcpu": "skylak"}, "field mcpu: LLVM has no CPU 'skylak' .* did you mean skylake"),
        ({"kind": "llvm", "mcpu": "native"}, 'field mcpu: .* write the target "native" for the processor of this'),
        (
            {"kind": "llvm", "mtriple": "riscv64-linux-gnu", "mcpu": "apple-m1"},
            '"mtriple": "arm64-apple-macos", "mcpu"',
        ),
        ({"kind": "llvm", "mtriple": "riscv64-linux-gnu", "mcpu": "neoverse-n1"}, '"aarch64-linux-gnu", "mcpu": "neov'),
        ("spacemit-x60", '"mtriple": "riscv64-linux-gnu", "mcpu": "spacemit-x60", "num-cores": 4}$'),
        ("Haswell", 'a processor, write {"kind": "llvm", .*"mcpu": "haswell"'),
        ("apple-m1", '\'apple-m1\' is not a kind of target but a processor, write .*"mcpu": "apple-m1"'),
        ("riscv64", '"mtriple": "riscv64-linux-gnu", "mcpu": "spacemit-x60"'),
        ({"kind": "llvm", "num-cores": -3}, "field num-cores: -3 is no number of cores; give 1 or more"),
        ({"kind": "llvm", "mcpu": "§"}, "field mcpu: .* some it has: "),
        ({"kind": "llvm", "mtriple": "foo-bar"}, "field mtriple: LLVM cannot compile for 'foo-bar'; architectures"),
        ({"kind": "llvm", "mtriple": "foo-bar", "mcpu": "x"}, "field mtriple: LLVM cannot compile for 'foo-bar'"),
        ({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "skylake"}, "no CPU 'skylake' for aarch64"),
        ({"kind": "llvm", "mattr": ["+nope"]}, "'\\+nope' is not a recognized feature"),
        ({"kind": "llvm", "mattr": ["+avx2", "-avx2"]}, "field mattr: \\+avx2 contradicts -avx2; leave out what"),
        ({"kind": "llvm", "mcpu": "skylake", "mattr": ["+avx512f", "-avx2"]}, "\\+avx512f contradicts -avx2"),
        ({"kind": "llvm", "mcpu": "skylake", "mattr": ["-avx2", "+avx512f"]}, "-avx2 contradicts \\+avx512f"),
        ({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mattr": ["-sse2"]}, "needs the feature sse2"),
        ({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["-neon"]}, "feature neon, .* add \\+neon"),
        ({"kind": "llvm", "mtriple": "riscv64-linux-gnu", "mcpu": "generic-rv64"}, "feature d, which the target is"),
        ({"kind": "llvm", "mcpu": ""}, "field mcpu: '' names no processor; leave the field out, or name one"),
        ({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "i386"}, "i386 is a processor of 32 bits, and x86_64"),
        ({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mattr": ["-64bit"]}, "needs the feature 64bit"),
        ({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mattr": ["+soft-float"]}, "made with the feature soft-float"),
        ({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mattr": ["+16bit-mode"]}, "made with the feature 16bit-mode"),
        ({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+reserve-x1"]}, "with the feature reserve-x1"),
        ({"kind": "llvm", "mtriple": "riscv64-linux-gnu", "mattr": ["+d", "+zdinx"]}, "feature zfinx; leave out what"),
        ({"kind": "llvm", "mtriple": "riscv64-linux-gnu", "mattr": ["+d", "+32bit"]}, "with the feature 32bit"),
        ({"kind": "llvm", "mtriple": "riscv64-linux-gnu", "mcpu": "sifive-u74", "mattr": ["-64bit"]}, "feature 64bit"),
        ({"kind": "llvm", "mtriple": "riscv64-linux-gnu"}, "feature d, which the target is without"),
        ({"kind": "llvm", "mtriple": "nvptx64-nvidia-cuda"}, "nvptx64-nvidia-cuda is a GPU; .* of kind cuda"),
        ({"kind": "llvm", "cl-opt": ["-nope"]}, '"nope" is not an LLVM option'),
        ({"kind": "llvm", "jit": "nope"}, "invalid jit option nope"),
        ({"kind": "llvm", "num-cores": 2**70}, "num-cores"),
        ({"kind": "cuda", "arch": "sm_90", "host": {"kind": "llvm", "mcpu": "nope"}}, "no CPU 'nope'"),
        ({"tag": "nope"}, "Unknown target tag: nope"),
        ("composite", "no code generator for target composite; it has c, cuda"),
        ("hexagon", "does not say which processor; give a tag such as hexagon-v67"),
        (5, "found int"),
        ([], "found list"),
    ],
)
def test_a_wrong_target_is_explained_and_nothing_else_is_printed(
    target: object, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TargetError, match=message):
        resolve_target(target)
    assert capfd.readouterr().err == ""


def test_cuda_without_an_architecture_needs_a_gpu() -> None:
    if tvm.cuda(0).exist:
        assert resolve_target("cuda").kind.name == "cuda"
        return
    for target in ("cuda", {"kind": "cuda"}):
        with pytest.raises(TargetError, match="does not say for which GPU, and this machine has none"):
            resolve_target(target)


@given(st.text(max_size=30) | st.dictionaries(st.sampled_from(["kind", "mcpu", "keys", "tag"]), st.text(max_size=8)))
def test_anything_else_is_an_error_of_the_same_class(target: str | dict[str, str]) -> None:
    with contextlib.suppress(TargetError):
        assert isinstance(resolve_target(target), tvm.target.Target)


@pytest.mark.parametrize(
    ("target", "remedy"),
    [
        ("llvm", 'write "native" for this machine'),
        ({"kind": "llvm"}, 'write "native" for this machine'),
        ('{"kind": "llvm"}', 'write "native" for this machine'),
        (tvm.target.Target("llvm"), 'write "native" for this machine'),
        ({"kind": "llvm", "mtriple": "aarch64-linux-gnu"}, '"mtriple": "aarch64-linux-gnu", "mcpu": "..."'),
        ({"kind": "llvm", "mcpu": "generic"}, 'write "native" for this machine'),
    ],
)
def test_a_target_without_a_processor_is_warned_of(target: Any, remedy: str) -> None:
    with pytest.warns(PerformanceWarning, match="target llvm names no processor") as caught:
        warn_if_baseline(resolve_target(target))
    assert remedy in str(caught[0].message)
    assert caught[0].filename == __file__


def test_another_machine_is_asked_for_its_cores() -> None:
    unknown = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"}
    with pytest.warns(PerformanceWarning, match="does not say how many cores there are"):
        warn_if_baseline(resolve_target(unknown))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_baseline(resolve_target({**unknown, "num-cores": 8}))
        warn_if_baseline(resolve_target({**unknown, "mcpu": "cortex-a72"}))


@pytest.mark.parametrize(
    "target",
    [None, "native", {"kind": "llvm", "mcpu": "x86-64"}, {"kind": "llvm", "mattr": ["+avx2"]}, "tvm-ext/vta-1x16x16"],
)
def test_a_target_that_says_what_it_is_needs_no_warning(target: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_baseline(resolve_target(target))


@pytest.mark.parametrize(
    ("said", "meant"), [("cpu", "native or llvm"), ("X86", "native or llvm"), ("gpu", "nvidia/h100 or cuda")]
)
def test_everyday_words_for_processors(said: str, meant: str) -> None:
    with pytest.raises(TargetError, match=rf"unknown target '{said}': did you mean {meant}\?"):
        resolve_target(said)
