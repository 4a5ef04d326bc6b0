"""One trial: a model is compiled, run, and compared with onnxruntime; where they differ, with stock TVM."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

import tvm_ext
from scripts.fuzz import reference
from scripts.fuzz.judge import Verdict, judge
from scripts.fuzz.options import Options
from tvm_ext.errors import CompileError, TvmExtError
from tvm_ext.frontend import import_model

MOST_OPEN = 8
"""Largest extent of a dimension that stays open."""

Stage = Callable[[str], None]


@dataclass
class Outcome:
    """What came of a trial.

    Attributes
    ----------
    kind : str
        ``ok``; ``unspecified`` (every output is one that ONNX leaves open); ``refused``; ``failed`` (refused, but only
        because TVM could not compile or run it); ``error`` (an exception that is not ours); ``wrong``; ``skipped``
        (there is no model, or the reference cannot run it). The workers add ``crash`` and ``hang``.
    detail : str
        What is wrong or refused, in a line.
    verdicts : dict
        Number of outputs by verdict.
    seconds : float
        Of processor time.
    """

    kind: str
    detail: str = ""
    verdicts: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


def try_model(
    model: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
    options: Options,
    *,
    stage: Stage = lambda name: None,
    stock: bool = False,
) -> Outcome:
    """Compile, run and compare; ``stage`` is told what begins, ``stock`` asks stock TVM also where all is well."""
    start = time.process_time()
    stage("reference")
    given, model = model, reference.concrete(model, feeds)
    try:
        expected = reference.run(model, feeds)
    except reference.Unusable as error:
        return Outcome("skipped", f"reference: {error}")
    stage("compile")
    try:
        verdicts_of = _ran(given, model, feeds, expected, options, stage)
    except CompileError as error:
        return Outcome("failed", _line(error), seconds=time.process_time() - start)
    except TvmExtError as error:
        return Outcome("refused", _line(error), seconds=time.process_time() - start)
    except Exception as error:  # what is not ours is what is looked for
        return Outcome("error", f"{type(error).__name__}: {_line(error)}", seconds=time.process_time() - start)
    stage("judge")
    try:
        verdicts = verdicts_of()
    except reference.Unusable as error:
        return Outcome("skipped", f"variant of the reference: {error}", seconds=time.process_time() - start)
    if options.rewrite != "off" and not options.accelerator and any(verdict.kind == "wrong" for verdict in verdicts):
        verdicts = _allowed(model, feeds, expected, options, verdicts)
    counts: dict[str, int] = {}
    for verdict in verdicts:
        counts[verdict.kind] = counts.get(verdict.kind, 0) + 1
    kind = "wrong" if counts.get("wrong") else "ok" if set(counts) - {"unspecified"} else "unspecified"
    detail = "; ".join(f"{verdict.name}: {verdict.detail}" for verdict in verdicts if verdict.kind == "wrong")
    if kind == "wrong" or stock:
        stage("stock")
        opinion = _third_opinion(model, feeds, expected, verdicts if kind == "wrong" else None)
        detail = f"{detail} (stock TVM {opinion})" if kind == "wrong" else f"stock TVM {opinion}"
    return Outcome(kind, detail, counts, time.process_time() - start)


def _ran(
    given: onnx.ModelProto,
    model: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
    expected: list[np.ndarray],
    options: Options,
    stage: Stage,
) -> Callable[[], list[Verdict]]:
    """Compile and run where the options say; give what judges the outputs."""
    if not options.accelerator:
        compiled = tvm_ext.compile(given, options.target(), **_extents(given, feeds, options), **options.pipeline())
        stage("run")
        found = list(compiled.run(feeds).values())
        return lambda: judge(model, feeds, expected, found)
    imported = import_model(given, input_shapes={name: array.shape for name, array in feeds.items()})
    if options.accelerator == "hexagon":
        from scripts.fuzz import on_hexagon

        found = on_hexagon.run(imported, feeds, options)
        return lambda: judge(model, feeds, expected, found)
    from scripts.fuzz import on_vta  # its package is for those who ask for it

    ran = on_vta.run(imported, feeds, options)
    return lambda: on_vta.verdicts(model, feeds, expected, ran)


def _extents(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], options: Options) -> dict[str, Any]:
    """Say which sizes stay open, and which are those of the inputs.

    C sources have none that are open. In a file, 0 is what exporters write for such a size: empty inputs are named.
    """
    dims = [dim for item in model.graph.input for dim in item.type.tensor_type.shape.dim]
    names = {dim.dim_param for dim in dims if dim.dim_param}
    if names and options.emit == "module":
        return {"dynamic": {name: (1, MOST_OPEN) for name in names}}
    return {"input_shapes": {name: array.shape for name, array in feeds.items() if names or 0 in array.shape}}


def _allowed(
    model: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
    expected: list[np.ndarray],
    options: Options,
    verdicts: list[Verdict],
) -> list[Verdict]:
    """Take for unspecified what the option ``rewrite`` leaves open, by its description: what is not finite.

    Without rewriting, those outputs have to be right.
    """
    finite = [bool(np.isfinite(array).all()) for array in (*feeds.values(), *expected) if array.dtype.kind == "f"]
    if all(finite):
        return verdicts
    try:
        settings = options.pipeline() | {"rewrite": "off"}
        plain = tvm_ext.compile(model, options.target(), **_extents(model, feeds, options), **settings)
        again = judge(model, feeds, expected, list(plain.run(feeds).values()))
    except (TvmExtError, reference.Unusable):
        return verdicts
    return [
        Verdict(mine.name, "unspecified", "rewriting, and values that are not finite")
        if mine.kind == "wrong" and other.kind != "wrong"
        else mine
        for mine, other in zip(verdicts, again, strict=True)
    ]


def _third_opinion(
    model: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
    expected: list[np.ndarray],
    wrong: list[Verdict] | None,
) -> str:
    """Say whether stock TVM, with its own importer, agrees with the reference."""
    try:
        theirs = judge(model, feeds, expected, stock_outputs(model, feeds))
    except Exception as error:  # TVM raises whatever its C++ side threw
        return f"fails: {type(error).__name__}"
    bad = {verdict.name for verdict in theirs if verdict.kind == "wrong"}
    if wrong is None:
        return "differs, too" if bad else "agrees"
    ours = {verdict.name for verdict in wrong if verdict.kind == "wrong"}
    return "differs, too" if ours & bad else "agrees with onnxruntime"


def stock_outputs(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Compile and run with nothing but TVM."""
    mod = from_onnx(model, keep_params_in_input=False)
    executable = tvm.compile(mod, tvm.target.Target({"kind": "llvm"}))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    result: Any = machine["main"](*(tvm.runtime.tensor(feeds[item.name]) for item in model.graph.input))
    fields = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return [item.numpy() for item in fields]


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
