"""Inner loops of products and convolutions for AArch64, judged by LLVM's machine-code analyser (llvm-mca).

The density of a loop is the number of cycles that its multiply-adds alone would take on the execution units, over the
cycles that the analyser finds for the whole loop: 1 where nothing but multiply-adds decides.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from math import prod
from statistics import geometric_mean
from typing import Any

import numpy as np
import tvm
from tvm import relax

from scripts.kernel_shares import CASES, Case
from tvm_ext.artifact.shared_object import host_modules
from tvm_ext.target import resolve_target

CPUS = ("cortex-a76", "neoverse-n1", "apple-m1")
"""CPUs that code is made for and judged on; the analyser knows fewer units of the first and the last than they have."""

INTEGER_CPUS = ("neoverse-n1", "neoverse-v1")
INTEGER_LAYERS = ((128, 28, 128, 3), (256, 56, 64, 1))
"""Channels, rows and columns, output channels, taps of convolutions of 8-bit integers."""

ANALYSERS = ("llvm-mca", *(f"llvm-mca-{version}" for version in range(22, 15, -1)))
ITERATIONS = 100
LEAST = 8
"""Multiply-adds of a loop that accumulates a register tile."""

_MULTIPLY_ADD = re.compile(r"\s+(fmla|sdot|udot|usdot|sudot|smmla|usmmla)\s")
_LABEL = re.compile(r"(\.LBB\w+):")
_BRANCH = re.compile(r"\s+(?:b|b\.\w+|cbn?z\s+\w+,|tbn?z\s+\w+,\s*#\d+,)\s+(\.LBB\w+)$")
_NO_CODE = re.compile(r"\s*\.(?!LBB)")


def measure(only: Sequence[str] = ()) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Analyse the loops of every layer for every CPU; one row for each."""
    analyser = _analyser()
    rows = []
    for case in CASES:
        if case.family in ("matmul", "conv 1x1", "conv 3x3") and (not only or case.family in only):
            rows += [_row(case.family, case.name, _float_code(case, cpu), cpu, analyser) for cpu in CPUS]
    for layer in INTEGER_LAYERS:
        name = "{}x{}x{} -> {}, {} taps".format(layer[0], layer[1], *layer[1:3], layer[3] ** 2)
        rows += [_row("int8", name, _integer_code(*layer, cpu), cpu, analyser) for cpu in INTEGER_CPUS]
    found = [row["density"] for row in rows if row["family"] != "int8"]
    integers = [row["density"] for row in rows if row["family"] == "int8"]
    return rows, {
        "aarch64_fma_density": geometric_mean(found),
        "aarch64_fma_density_worst": min(found),
        "aarch64_dot_density": geometric_mean(integers),
        "aarch64_spills": sum(row["stack_accesses"] for row in rows),
    }


def inner_loops(assembly: str) -> Iterator[list[str]]:
    """Walk the innermost loops: instructions between a label and a branch back to it, without other labels."""
    lines = [line.split("//")[0].rstrip() for line in assembly.splitlines()]
    lines = [line for line in lines if line.strip() and not _NO_CODE.match(line)]
    begin, name = 0, ""
    for number, line in enumerate(lines):
        if label := _LABEL.match(line):
            begin, name = number + 1, label[1]
        elif (branch := _BRANCH.match(line)) and branch[1] == name:
            yield lines[begin : number + 1]


def _row(family: str, name: str, assembly: str, cpu: str, analyser: str) -> dict[str, Any]:
    loop = max(inner_loops(assembly), key=lambda lines: sum(map(_multiplies, lines)))
    own = [line for line in loop if _multiplies(line)]
    assert len(own) >= LEAST, f"{name}: no loop of multiply-adds"
    ideal, cycles = _cycles(own, cpu, analyser)[1], _cycles(loop, cpu, analyser)[0]
    row = {
        "family": family,
        "layer": name,
        "cpu": cpu,
        "instructions": len(loop),
        "multiply_adds": len(own),
        "stack_accesses": sum("[sp" in line for line in loop),
        "cycles": cycles,
        "ideal_cycles": ideal,
        "density": ideal / cycles,
    }
    print(*row.values(), flush=True)
    return row


def _multiplies(line: str) -> bool:
    return _MULTIPLY_ADD.match(line) is not None


def _cycles(lines: Sequence[str], cpu: str, analyser: str) -> tuple[float, float]:
    """Cycles of one iteration with all that delays it, and with nothing but too few execution units."""
    options = [f"-mcpu={cpu}", f"-iterations={ITERATIONS}", "-instruction-info=0", "-resource-pressure=0"]
    command = [analyser, "-mtriple=aarch64-linux-gnu", *options]
    done = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    total = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    bound = re.search(r"Block RThroughput:\s+([\d.]+)", done.stdout)
    assert total is not None
    assert bound is not None
    return int(total[1]) / ITERATIONS, float(bound[1])


def _analyser() -> str:
    found = [name for name in ANALYSERS if shutil.which(name)]
    newest = max(found, key=lambda name: int(re.findall(r"version (\d+)", _version(name))[0]), default="")
    if not newest:
        sys.exit("inner loops are judged by llvm-mca, which is not installed (Debian: llvm-19)")
    return newest


def _version(name: str) -> str:
    return subprocess.run([name, "--version"], capture_output=True, text=True, check=True).stdout


def _float_code(case: Case, cpu: str) -> str:
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType(case.shape, "float32"))
    with builder.function("main", [data]):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(case.layer(builder, data)))
        builder.emit_func_output(result)
    return _assembly(builder.get(), cpu)


def _integer_code(channels: int, size: int, out: int, taps: int, cpu: str) -> str:
    shape = (out, channels, taps, taps)
    weight = np.random.default_rng(0).integers(-128, 128, prod(shape)).astype("int8").reshape(shape)
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((1, channels, size, size), "uint8"))
    with builder.function("main", [data]):
        with builder.dataflow():
            result = relax.op.nn.conv2d(data, relax.const(weight), 1, taps // 2, out_dtype="int32")
            result = builder.emit_output(builder.normalize(result))
        builder.emit_func_output(result)
    return _assembly(builder.get(), cpu)


def _assembly(module: tvm.IRModule, cpu: str) -> str:
    target = resolve_target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": cpu, "num-cores": 2})
    # Winograd's algorithm would leave no loop of the convolution itself.
    pipeline = relax.get_pipeline("tvm_ext", winograd=False)
    executable = tvm.compile(module, target, relax_pipeline=pipeline)
    return "\n".join(part.inspect_source("asm") for part in host_modules(executable.mod) if part.kind == "llvm")
