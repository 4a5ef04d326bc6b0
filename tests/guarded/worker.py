"""Compiles graphs, runs their kernels on guarded memory, and says before each what it is about to run.

Reads jobs from the standard input, one JSON object a line, and writes what came of them to the standard output.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

import tvm_ext  # noqa: F401  (registers the pipeline)
from tests.guarded.cases import TARGETS, Sample, draw
from tests.guarded.pages import arrays_of, run_guarded
from tvm_ext.frontend import import_model
from tvm_ext.memory.relax.segment_code import SEGMENT_ATTRIBUTE
from tvm_ext.passes.vector_code import UNPROVED_ATTRIBUTE
from tvm_ext.schedules.rule import RULE_ATTRIBUTE


def main() -> None:
    """Do the jobs until the input ends."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no answer

    def say(event: dict[str, Any]) -> None:
        os.write(answers, (json.dumps(event) + "\n").encode())

    for line in sys.stdin:
        job = json.loads(line)
        say(run(job["family"], job["seed"], job["level"], lambda name, place: say({"before": f"{name} ({place})"})))


def run(family: str, seed: int, level: str, before: Callable[[str, str], None]) -> dict[str, Any]:
    """Compile and run one graph; the result has the fields of :class:`tests.guarded.jobs.Outcome`."""
    target = TARGETS[level]
    try:
        sample, module = _sample(family, seed)
        compiled = [_compiled(module, target, None)]
        if any(func.attrs and SEGMENT_ATTRIBUTE in func.attrs for func in compiled[0][0].values()):
            # A segment calls its kernels itself, on memory of its own: here the virtual machine calls each of them.
            compiled.append(_compiled(module, target, "stock"))
    except Exception as error:  # whatever a phase raised
        return {"refused": f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:300]}"}
    found: dict[str, Any] = {"rules": [], "faults": [], "wrong": "", "unproved": []}
    for kernels, executable in compiled:
        found["unproved"] += [
            f"{name}: {func.attrs[UNPROVED_ATTRIBUTE]}"
            for name, func in kernels.items()
            if func.attrs and UNPROVED_ATTRIBUTE in func.attrs
        ]
        result, runs = run_guarded(executable, set(kernels), list(sample.inputs), before)
        rules = {name: str((func.attrs or {}).get(RULE_ATTRIBUTE, "none")) for name, func in kernels.items()}
        found["rules"] += [rules[name] for name in dict.fromkeys(run.name for run in runs)]
        found["faults"] += [f"{run.name} ({run.place}): {run.fault}" for run in runs if run.fault]
        found["wrong"] = found["wrong"] or _difference(sample, result)
    return found


def _compiled(module: tvm.IRModule, target: tvm.target.Target, memory: str | None) -> tuple[dict[str, Any], Any]:
    """Compile a module; its kernels by name, and the executable."""
    with target:
        module = relax.get_pipeline("tvm_ext", memory=memory)(module)
    kernels = {var.name_hint: func for var, func in module.functions.items() if isinstance(func, tirx.PrimFunc)}
    return kernels, tvm.compile(module, target, relax_pipeline=tvm.transform.Sequential([]))


def _sample(family: str, seed: int) -> tuple[Sample, tvm.IRModule]:
    if not family.startswith("zoo:"):
        sample = draw(family, seed)
        return sample, sample.module()
    from tests.zoo import get

    module = import_model(str(get(family.removeprefix("zoo:")).onnx_path())).mod
    random = np.random.default_rng(seed)
    inputs = [_input(parameter.ty, random) for parameter in module["main"].params]
    return Sample(lambda *_inputs: None, inputs), module


def _input(kind: Any, random: np.random.Generator) -> np.ndarray:
    shape, dtype = [int(extent) for extent in kind.shape], str(kind.dtype)
    if "float" in dtype:
        return random.random(shape).astype(dtype)
    return random.integers(0, 2, shape).astype(dtype)


def _difference(sample: Sample, result: Any) -> str:
    if sample.expected is None:
        return ""
    expected = sample.expected(*sample.inputs)
    for got, wanted in zip(arrays_of(result), expected if isinstance(expected, list) else [expected], strict=True):
        if got.shape != wanted.shape:
            return f"shape {got.shape} instead of {wanted.shape}"
        got, wanted = got.astype("float64"), np.asarray(wanted, "float64")
        if got.size and not np.abs(got - wanted).max() <= sample.tolerance * max(1.0, np.abs(wanted).max()):
            return f"off by {np.abs(got - wanted).max():.3g}"
    return ""


if __name__ == "__main__":
    main()
