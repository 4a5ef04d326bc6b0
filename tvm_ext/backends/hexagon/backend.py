"""The rows of Hexagon DSPs: programs of our own, and what TVM makes with a vendor's SDK."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tvm

from tvm_ext.backends.backend import Backend, CountingMeasurer, in_float32
from tvm_ext.backends.common import COMMON, Passes, inference_form, lower
from tvm_ext.backends.hexagon.embedded_cost import packet_cost
from tvm_ext.backends.hexagon.model.integers import hvx_kernels
from tvm_ext.backends.hexagon.model.limits import check_elements
from tvm_ext.backends.hexagon.target import complete, is_hexagon
from tvm_ext.backends.hexagon.toolchain import complaint
from tvm_ext.backends.scope_limits import within_scopes
from tvm_ext.embedding.choice import Offer
from tvm_ext.errors import MissingPackageError
from tvm_ext.options import PipelineOptions
from tvm_ext.passes.exact_reductions import infinite_identities
from tvm_ext.passes.few_largest import sorts_as_kernels
from tvm_ext.passes.float_arithmetic import propagate_nan, protect_cancellations
from tvm_ext.passes.float_legalizations import FLOAT_LEGALIZATIONS
from tvm_ext.passes.value_checks import without_value_checks
from tvm_ext.phases import PHASES
from tvm_ext.schedules.instructions.rows import VMPA, VMPA_WORDS, VMPY, VMPY_SPLAT, VMPY_WORDS, VRMPY

VTCM = "global.vtcm"
"""Scope of the tightly coupled memory beside the vector units."""


def _canonicalize(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> Passes:
    return [check_elements(), *inference_form([without_value_checks()], [hvx_kernels()], [sorts_as_kernels(None)])]


def _lower(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> Passes:
    # Kernels have their schedules, which are found by the plain form of maxima.
    kernels = [infinite_identities(), protect_cancellations(), propagate_nan(numbers_win=True)]
    return [*lower(backend, target, options), *kernels]


def _standalone(
    mod: tvm.IRModule, target: tvm.target.Target, options: PipelineOptions
) -> tuple[Any, dict[str, Any], type]:
    # Artifacts and the emulator are for those who compile for Hexagon only.
    from tvm_ext.backends.hexagon.model.compiled import HexagonModel
    from tvm_ext.backends.hexagon.model.program import model_program

    limit = None if options.memory_limit is None else int(options.memory_limit)
    program = model_program(mod, target, limit)
    scalar = [step for step in program.plan.steps if not step.is_vector]
    notes = {
        "run_with": "tvm-ext run --emulate",
        "load_with": f"{HexagonModel.__module__}.load_hexagon",
        "calls": len(program.plan.steps),
        "scalar": [step.kernel for step in scalar],
        "scalar_nodes": _nodes(scalar),
        "arena": program.plan.arena,
        "constants": len(program.constants),
        "packets": _packets(program.packed),
    }
    return program, notes, HexagonModel


def _nodes(steps: Iterable[Any]) -> dict[str, list[str]]:
    """List the nodes that each kernel computes, all its calls together."""
    found: dict[str, dict[str, None]] = {}
    for step in steps:
        found.setdefault(step.kernel, {}).update(dict.fromkeys(step.nodes))
    return {kernel: list(words) for kernel, words in found.items()}


def _packets(packed: Any) -> dict[str, Any]:
    """Say whose packets the kernels have: a block has ours where they take fewer cycles by the model."""
    ours = [name for name, count in packed.verified.items() if count]
    return {
        "kernels": len(packed.verified) + len(packed.kept),
        "ours": len(ours),
        "verified_blocks": sum(packed.verified.values()),
        "refused": [{"kernel": item.function, "packet": list(item.packet)} for item in packed.refused],
        "kept": list(packed.kept),
        "estimated_cycles": round(sum(packed.cycles.values())),
        "estimated_cycles_of_llvm": round(sum(packed.cycles_before.values())),
    }


MOST_COSTED = 64
"""Embeddings of one instruction whose packets are estimated: instructions of several axes have thousands."""


def _instructions(target: tvm.target.Target) -> list[Offer]:
    rows = (VRMPY, VMPA_WORDS, VMPY_WORDS, VMPA, VMPY_SPLAT, VMPY)
    return [Offer(row, packet_cost(row), unit="packets", most=MOST_COSTED) for row in rows]


def _measurer(target: tvm.target.Target) -> CountingMeasurer:
    # MetaSchedule is for those who tune.
    from tvm_ext.backends.hexagon.tuning import PacketTuner

    return PacketTuner(target, lambda mod: _before_schedules(mod, target))


def _before_schedules(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Bring a module to the point where kernels get their schedules, with the options that are the default."""
    if complaint():
        raise MissingPackageError(complaint())
    with target, tvm.transform.PassContext():
        for phase in PHASES:
            if phase.name == "schedule":
                break
            mod = tvm.transform.Sequential(HEXAGON.passes(phase.name, target, PipelineOptions()))(mod)
    return mod


HEXAGON = Backend(
    name="hexagon",
    accepts=lambda target: target.kind.name == "llvm" and is_hexagon(target),
    phases={**COMMON, "canonicalize": _canonicalize, "lower": _lower},
    legalizations=FLOAT_LEGALIZATIONS,
    complete=complete,
    instructions=_instructions,
    check_options=lambda target, options: in_float32(target, options, "hexagon"),
    measurer=_measurer,
    profile_with="tvm-ext hexagon profile",
    standalone=_standalone,
)

HEXAGON_SDK = Backend(
    name="hexagon-sdk",
    accepts=lambda target: target.kind.name == "hexagon",
    phases=COMMON,
    complete=complete,
    instructions=_instructions,
    refuses=within_scopes(lambda target: {VTCM: int(target.attrs["vtcm-capacity"])}),
)
"""TVM's kind ``hexagon``, whose libraries are linked with a vendor's SDK."""
