"""Networks that nobody built give onnxruntime's values on targets that nobody chose for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import relax

import tvm_ext
from tests.guarded import emulated_model
from tests.hexagon.emulated import needs_emulator
from tests.shapes.test_random_networks import KINDS, check, compare, session_of
from tvm_ext.frontend import import_model
from tvm_ext.options import PipelineOptions
from tvm_ext.phases import PHASES
from tvm_ext.pipeline import phase_passes
from tvm_ext.target import resolve_target

X86 = tuple({"kind": "llvm", "mcpu": name} for name in ("haswell", "x86-64-v2", "x86-64", "znver3", "nehalem"))
ARM = tuple(
    {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": name, "num-cores": 2}
    for name in ("cortex-a53", "neoverse-n1", "neoverse-v1", "apple-m1")
)
HEXAGON = ("hexagon-v66", "hexagon-v67", "hexagon-v68", "hexagon-v73")
BEFORE_SCHEDULES = tuple(phase.name for phase in PHASES[: [phase.name for phase in PHASES].index("schedule")])
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"opt_level": 3},
    {"memory": "optimal", "patches": "always"},
    {"opt_level": 0},
)


@pytest.mark.parametrize(("kind", "seed"), [("images", 2003), ("sequences", 222), ("quantized", 2001)])
def test_other_cpus(kind: str, seed: int) -> None:
    check(kind, seed, X86[seed % len(X86)])


@pytest.mark.slow
@pytest.mark.parametrize("start", range(2000, 2060, 10))
@pytest.mark.parametrize("kind", KINDS)
def test_many_other_cpus(kind: str, start: int) -> None:
    for seed in range(start, start + 10):
        check(kind, seed, X86[seed % len(X86)], is_open=seed % 3 > 0, **OPTIONS[seed // 5 % len(OPTIONS)])


def rewritten_for(target: Any, kind: str, seed: int, is_open: bool) -> None:
    """Rewrite a network for another CPU, and run what that computes, unscheduled, on this one."""
    network = KINDS[kind].draw(seed)
    size = KINDS[kind].SIZES[1 + seed % 4]
    feeds, model = network.feeds(size, seed), network.model()
    shapes = {name: array.shape for name, array in feeds.items()}
    imported = import_model(model, **({"dynamic": network.dynamic} if is_open else {"input_shapes": shapes}))
    mod, here = imported.mod, tvm.target.Target("llvm")
    for machine, names in ((resolve_target(target), BEFORE_SCHEDULES), (here, ("lower", "memory", "finalize"))):
        with machine:
            for phase, lower in phase_passes(machine, PipelineOptions(memory="stock", flush_denormals=False)):
                mod = lower(mod) if phase.name in names else mod
    built = tvm.compile(mod, here, relax_pipeline=tvm.transform.Sequential([]))
    result = relax.VirtualMachine(built, tvm.cpu())["main"](
        *(tvm.runtime.tensor(feeds[spec.name]) for spec in imported.inputs)
    )
    found = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    for want, have in zip(session_of(kind, model).run(None, feeds), found, strict=True):
        # Sums in the order of their elements: a norm makes much of how they are rounded.
        compare(kind, want, have.numpy(), f"{kind} {seed} {size} {target}", tolerance=2e-2)


@pytest.mark.parametrize(
    ("kind", "seed", "is_open", "target"),
    [
        ("quantized", 213, True, ARM[1]),  # products of signed bytes
        ("quantized", 2002, False, ARM[1]),
        ("images", 2001, True, ARM[2]),
    ],
)
def test_rewritten_for_arm(kind: str, seed: int, is_open: bool, target: dict[str, Any]) -> None:
    rewritten_for(target, kind, seed, is_open)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(2000, 2060, 10))
@pytest.mark.parametrize("kind", KINDS)
def test_many_rewritten_for_arm(kind: str, start: int) -> None:
    for seed in range(start, start + 10):
        rewritten_for(ARM[seed % len(ARM)], kind, seed, is_open=seed % 3 > 0)


@pytest.mark.slow
@pytest.mark.skipif(bool(emulated_model.missing()), reason=f"models for AArch64 need {emulated_model.missing()}")
@pytest.mark.parametrize("kind", KINDS)
def test_emulated_arm(kind: str, tmp_path: Path) -> None:
    runner = emulated_model.build_model_runner(tmp_path)
    for seed in range(2000, 2012):
        network = KINDS[kind].draw(seed)
        if any(node.op_type == "TopK" for node in network.nodes):  # TVM sorts in a library of its own
            continue
        feeds, model = network.feeds(KINDS[kind].SIZES[1 + seed % 4], seed), network.model()
        shapes = {name: array.shape for name, array in feeds.items()}
        given: dict[str, Any] = {"dynamic": network.dynamic} if seed % 2 else {"input_shapes": shapes}
        compiled = tvm_ext.compile(model, ARM[seed // 2 % len(ARM)], **given)
        wanted = session_of(kind, model).run(None, feeds)
        outputs = [replace(spec, shape=array.shape) for spec, array in zip(compiled.outputs, wanted, strict=True)]
        inputs = [feeds[spec.name] for spec in compiled.inputs]
        artifact = compiled.save(tmp_path / "model", force=True)
        found = emulated_model.run_model(artifact, inputs, outputs, runner, tmp_path, threads=1 + seed % 2)
        for want, have in zip(wanted, found.values(), strict=True):
            compare(kind, want, have, f"{kind} {seed}")


@needs_emulator
@pytest.mark.slow
@pytest.mark.parametrize("seed", [102, *range(2000, 2006)])
def test_emulated_hexagon(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_ext.backends.hexagon.packer.choice.EFFORT", 5)
    network = KINDS["quantized"].draw(seed)
    feeds, model = (
        network.feeds({"n": 1, "h": 7, "w": 9} if seed % 2 else {"n": 3, "h": 1, "w": 31}, seed),
        network.model(),
    )
    shapes = {name: array.shape for name, array in feeds.items()}
    compiled = tvm_ext.compile(model, HEXAGON[seed % len(HEXAGON)], input_shapes=shapes)
    for want, have in zip(session_of("quantized", model).run(None, feeds), compiled.run(feeds).values(), strict=True):
        compare("quantized", want, have, f"{seed}")
