"""Writes cases for a GPU into a folder: CUDA C++, launches, and for small ones arguments and results.

A pack is made on any machine, and run by :mod:`scripts.cuda.runner` where neither TVM nor this package is installed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax, tirx

from scripts.cuda.kernels import target_of
from tvm_ext.backends.cuda.emulator.lowering import Lowered, lower
from tvm_ext.errors import CompileError, first_line
from tvm_ext.relax_utils import constant

AXES, DYNAMIC = ("x", "y", "z"), "tirx.use_dyn_shared_memory"


@dataclass(frozen=True)
class Case:
    """Kernels in the order in which they are launched.

    Attributes
    ----------
    name : str
        Of files: letters, digits, ``-`` and ``_``.
    kind : str
        ``"check"``, ``"gemm"``, ``"attention"``, ``"memory"``, ``"rank"`` or ``"model"``.
    about : mapping
        What peers need to know of it.
    functions : mapping of str to PrimFunc
        Scheduled.
    calls : sequence of (str, sequence of int)
        Which function is called with which tensors.
    tensors : sequence of (shape, dtype)
    given : mapping of int to array or None
        Tensors that are no results: constants and inputs; None is drawn where it runs.
    results : mapping of int to array or None
        Tensors that are compared, or only computed.
    predicted : float, optional
        Seconds, by the cost model.
    """

    name: str
    kind: str
    about: Mapping[str, Any]
    functions: Mapping[str, tirx.PrimFunc]
    calls: Sequence[tuple[str, Sequence[int]]]
    tensors: Sequence[tuple[tuple[int, ...], str]]
    given: Mapping[int, NDArray[Any] | None]
    results: Mapping[int, NDArray[Any] | None]
    predicted: float | None = None
    lowered: dict[str, Lowered] = field(default_factory=dict)


def write_pack(folder: Path, cases: Sequence[Case], arch: str) -> dict[str, Any]:
    """Write cases; gives what the pack says of itself. One that cannot be lowered is named and left out."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for case in cases:
        try:
            written.append(_write(folder, case, arch))
        except Exception as error:  # whatever TVM raises
            print(f"{case.name}: {first_line(error)}", flush=True)
    described = {"arch": arch, "cases": written}
    (folder / "pack.json").write_text(json.dumps(described), encoding="utf-8")
    return described


def _write(folder: Path, case: Case, arch: str) -> dict[str, Any]:
    target = target_of(arch)
    (folder / f"{case.name}.cu").write_text(_source(case.functions, target), encoding="utf-8")
    for name, func in case.functions.items():
        case.lowered[name] = lower(func.with_attr("global_symbol", name), target)
    tensors = [{"shape": list(shape), "dtype": dtype, "given": False} for shape, dtype in case.tensors]
    for number in case.given:
        tensors[number]["given"] = True
    launches: list[dict[str, Any]] = []
    for name, arguments in case.calls:
        launches += _launches(case.lowered[name], arguments, tensors)
    arrays = {f"given{number}": array for number, array in case.given.items() if array is not None}
    arrays |= {f"result{number}": array for number, array in case.results.items() if array is not None}
    if arrays:
        np.savez(folder / f"{case.name}.npz", **arrays)
    types = {dtype for _, dtype in case.tensors}
    return {
        "name": case.name, "kind": case.kind, "about": dict(case.about), "predicted": case.predicted,
        "checked": bool(arrays), "tolerance": "float16" if "float16" in types else "float32", "tensors": tensors,
        "results": list(case.results), "launches": launches,
    }  # fmt: skip


def _source(functions: Mapping[str, tirx.PrimFunc], target: tvm.target.Target) -> str:
    """Print CUDA C++ of functions."""
    module = tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in functions.items()})
    library = tirx.build(module, target, pipeline="s_tir")
    return "\n".join(part.inspect_source() for part in library.imports if part.kind == "cuda")


def _launches(lowered: Lowered, arguments: Sequence[int], tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """List the kernels of a function; memory that it allocates itself becomes a tensor more."""
    places: dict[Any, int] = dict(zip(lowered.host.params, arguments, strict=True))
    found = []

    def visit(statement: Any) -> None:
        if isinstance(statement, tirx.SeqStmt):
            for inner in statement.seq:
                visit(inner)
        elif isinstance(statement, tirx.AttrStmt):
            visit(statement.body)
        elif isinstance(statement, tirx.DeclBuffer):
            places[statement.buffer] = places[_buffer(statement.data)]
        elif isinstance(statement, tirx.AllocBuffer):
            places[statement.buffer] = len(tensors)
            shape = [int(extent) for extent in statement.buffer.shape]
            tensors.append({"shape": shape, "dtype": str(statement.buffer.dtype), "given": False})
        elif isinstance(statement, tirx.Evaluate) and isinstance(statement.value, tvm.ir.Call):
            found.append(launch(statement.value))
        elif not isinstance(statement, tirx.Evaluate):
            raise CompileError(f"function {lowered.name} has work outside its kernels: a {type(statement).__name__}")

    def launch(call: Any) -> dict[str, Any]:
        kernel = lowered.kernels[str(call.args[0].value)]
        count = len(kernel.params)
        dynamic, extents = 0, {"blockIdx": [1, 1, 1], "threadIdx": [1, 1, 1]}
        tags = [str(tag) for tag in kernel.attrs["tirx.kernel_launch_params"]]
        for tag, extent in zip(tags, call.args[1 + count :], strict=False):
            group, _, axis = tag.partition(".")
            if group in extents:
                extents[group][AXES.index(axis)] = int(extent)
            elif tag == DYNAMIC:
                dynamic = int(extent)
        return {
            "kernel": str(call.args[0].value), "grid": extents["blockIdx"], "threads": extents["threadIdx"],
            "dynamic": dynamic, "tensors": [places[_buffer(argument)] for argument in call.args[1 : 1 + count]],
        }  # fmt: skip

    visit(lowered.host.body)
    return found


def _buffer(data: Any) -> Any:
    """Give the buffer of a pointer."""
    if isinstance(data, tvm.ir.Var):
        return data
    source = data.args[0]
    return source if isinstance(source, tvm.ir.Var) else source.source


@dataclass
class _Program:
    """The kernels of a module's main function, as it is when memory is still a tensor for each."""

    tensors: list[tuple[tuple[int, ...], str]] = field(default_factory=list)
    calls: list[tuple[str, list[int]]] = field(default_factory=list)
    given: dict[int, NDArray[Any] | None] = field(default_factory=dict)
    places: dict[Any, Any] = field(default_factory=dict)


def program(
    mod: tvm.IRModule, inputs: Sequence[NDArray[Any] | None], keep_constants: bool
) -> tuple[_Program, list[int]]:
    """Read the calls of a module in which destinations are explicit; gives them and the tensors of its results.

    Raises
    ------
    CompileError
        When it does anything but call kernels; the message names it.
    """
    main, found = mod["main"], _Program()

    def tensor(shape: Sequence[int], dtype: str) -> int:
        found.tensors.append((tuple(shape), dtype))
        return len(found.tensors) - 1

    def place(expr: Any) -> Any:
        if (array := constant(expr)) is not None:
            number = tensor(array.shape, str(array.dtype))
            found.given[number] = array if keep_constants else None
            return number
        if isinstance(expr, relax.Tuple):
            return [place(item) for item in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            return place(expr.tuple_value)[expr.index]
        return found.places[expr]

    for param, array in zip(main.params, inputs, strict=True):
        number = tensor([int(extent) for extent in param.ty.shape], str(param.ty.dtype))
        found.places[param], found.given[number] = number, array
    for block in main.body.blocks:
        for binding in block.bindings:
            value, variable = binding.value, binding.var
            operator = str(getattr(getattr(value, "op", None), "name", ""))
            if operator == "relax.builtin.alloc_tensor":
                found.places[variable] = tensor([int(extent) for extent in value.args[0].values], str(value.ty.dtype))
            elif operator in ("relax.reshape", "relax.memory.view", "relax.memory.ensure_zero_offset"):
                found.places[variable] = place(value.args[0])
            elif isinstance(value, relax.Call) and isinstance(value.op, relax.GlobalVar):
                found.calls.append((value.op.name_hint, [place(argument) for argument in value.args]))
            elif isinstance(value, relax.Var | relax.Tuple | relax.TupleGetItem | tvm.ir.GenericConst):
                found.places[variable] = place(value)
            elif operator not in ("relax.memory.kill_tensor", "relax.memory.kill_storage"):
                raise CompileError(f"main does more than call kernels: {operator or type(value).__name__}")
    results = place(main.body.body)
    return found, results if isinstance(results, list) else [results]
