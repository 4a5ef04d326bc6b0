"""Compares what an instruction means with what carries it out in a process of its own, before it is tuned with.

LLVM ends a process over an intrinsic that its target lacks, and a processor does over an instruction that it lacks. In
a process of its own both are a reason to refuse the instruction.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from typing import Any

import tvm
import tvm_ffi
from tvm.tirx import PrimFunc

from tvm_ext.embedding.check_instruction import check_functions, lacks
from tvm_ext.errors import EmbeddingError
from tvm_ext.system.cpu_features import missing_features
from tvm_ext.system.host import processor_flags
from tvm_ext.system.tiles import request_tiles

TUNED = "llvm"
"""What spaces with embeddings are for: the rest of them are the rules that MetaSchedule has for this kind of target."""

SECONDS = 300.0
"""What the comparison may take: a few seconds, of which the import of TVM is most, on a busy machine."""

_REFUSED = 3
"""Exit code of the process where the instruction is wrong; its output is the reason."""

_JUDGED: dict[Any, str] = {}
"""Reasons to refuse what was compared in this process; none is empty."""


def check_apart(
    name: str,
    implementation: str,
    meaning: PrimFunc,
    function: PrimFunc,
    target: tvm.target.Target,
    requires: tuple[str, ...] = (),
    tiles: bool = False,
) -> None:
    """Compare the two functions of an instruction; the same two are compared once.

    Parameters
    ----------
    name, implementation : str
        What messages call the instruction, and what carries it out.
    meaning, function : PrimFunc
    target : Target
        A CPU. Where it is not this machine, only operands are compared, and code is made.
    requires : tuple of str
        Features that the target has to have.
    tiles : bool
        Whether it works on tile registers.

    Raises
    ------
    EmbeddingError
        If they disagree, no code can be made of them, the target lacks a feature, or it is no CPU.
    """
    if target.kind.name != TUNED:
        raise EmbeddingError(
            f"{name}: embeddings are tuned on CPUs (target {TUNED}), and the target is {target.kind.name}"
        )
    if missing := lacks(requires, target):
        raise EmbeddingError(f"{name} requires {', '.join(missing)}, which the target does not have")
    key = (name, implementation, str(target), tvm_ffi.StructuralKey(meaning), tvm_ffi.StructuralKey(function))
    if key not in _JUDGED:
        _JUDGED[key] = _judged(name, implementation, meaning, function, target, tiles)
    if _JUDGED[key]:
        raise EmbeddingError(_JUDGED[key])


def runs_here(target: tvm.target.Target) -> bool:
    """Whether this machine runs code of an LLVM target, as far as is known."""
    triple = str(target.attrs.get("mtriple", "") or "")
    features = {str(feature) for feature in tvm.target.codegen.llvm_get_cpu_features(target)}
    return (not triple or triple.partition("-")[0] == platform.machine()) and not missing_features(
        features, processor_flags()
    )


def _judged(
    name: str, implementation: str, meaning: PrimFunc, function: PrimFunc, target: tvm.target.Target, tiles: bool
) -> str:
    job = {
        "name": name,
        "implementation": implementation,
        "functions": tvm.ir.save_json(tvm.IRModule({"meaning": meaning, "implementation": function})),
        "target": str(target),
        "runs": runs_here(target),
        "tiles": tiles,
    }
    command = [sys.executable, "-m", __name__]
    try:
        done = subprocess.run(
            command, input=json.dumps(job), capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"comparing the two halves of {name} took longer than {SECONDS:g} s and was stopped"
    if done.returncode == 0:
        return ""
    if done.returncode == _REFUSED:
        return done.stdout.strip()
    last = (done.stderr.strip().splitlines() or [""])[-1] if done.returncode > 0 else _fatal(done.stderr)
    return (
        f"making or running code of {name} ({implementation}) for this target ends the process"
        f"{f': {last}' if last else f' (code {done.returncode})'}"
    )


def _fatal(log: str) -> str:
    """Find what LLVM says before it ends a process."""
    return next((line for line in log.splitlines() if "LLVM ERROR" in line), "")


def main() -> int:
    """Do what standard input describes; in the process of its own."""
    job = json.load(sys.stdin)
    functions = tvm.ir.load_json(job["functions"])
    try:
        if job["tiles"] and job["runs"]:
            request_tiles()
        check_functions(
            job["name"], job["implementation"], functions["meaning"], functions["implementation"],
            tvm.target.Target(json.loads(job["target"])), runs=job["runs"],
        )  # fmt: skip
    except EmbeddingError as error:
        print(error)
        return _REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
