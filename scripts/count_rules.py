"""Count which rules of algebra match in which networks, and what they save.

Run: python scripts/count_rules.py [--only NAME ...] [--json PATH] [--keep FILE]

The networks are those of the zoo, and many small ones that are written as their papers do (:mod:`scripts.rewriting`)
and exported by torch. Counted is what the pipeline rewrites: the function behind the phase ``canonicalize``.
"""

from __future__ import annotations

import argparse
import io
import logging
import sys
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import onnx
import torch
import tvm

from scripts.results import add_json_option, add_keep_option, kept_or, result_path, store
from scripts.rewriting import pictures, sequences
from tests.zoo import ZOO, get
from tvm_ext.algebra.relax.rewrite import AlgebraReport, rewrite_algebra
from tvm_ext.algebra.rules import RULES
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.frontend import import_model
from tvm_ext.graph import from_relax
from tvm_ext.options import PipelineOptions
from tvm_ext.pipeline import phase_passes

NETS = {**sequences.NETS, **pictures.NETS}
CENTRED, SCALED = "x - mean(x) -> x, weights centred", "a * k -> a, constants take up the factor"
FREE = ("reshape", "expand_dims", "squeeze", "flatten")


def exported(name: str) -> onnx.ModelProto:
    """Export a network that is written here."""
    make, draw = NETS[name]
    torch.manual_seed(0)
    module, buffer = make().eval(), io.BytesIO()
    for parameter in module.parameters():  # zeros and ones would be folded as what they are
        if parameter.dim() == 1 and parameter.unique().numel() == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, draw(), buffer, dynamo=False, opset_version=14)
    return onnx.load_from_string(buffer.getvalue())


def canonical(mod: tvm.IRModule) -> tvm.IRModule:
    """Give the function that rewriting is given."""
    target = native_target()
    with target:
        for phase, phase_pass in phase_passes(target, PipelineOptions(rewrite="off")):
            mod = phase_pass(mod)
            if phase.name == "canonicalize":
                break
    return mod


def imported(name: str) -> tvm.IRModule:
    """Import a network of the zoo or of those written here."""
    if name in NETS:
        return import_model(exported(name)).mod
    entry = get(name)
    return import_model(entry.onnx_path(), input_shapes=entry.input_shapes()).mod


def work(mod: tvm.IRModule) -> dict[str, float]:
    """Count operators, but for views, and the bytes they write."""
    operators = written = 0
    for function in [value for _, value in mod.functions_items() if isinstance(value, tvm.relax.Function)]:
        graph = from_relax(function)
        nodes = [node for node in graph.nodes if node.op not in FREE]
        operators += len(nodes)
        written += sum(int(graph.tensors[name].nbytes or 0) for node in nodes for name in node.outputs)
    return {"operators": operators, "bytes": written}


def row_of(name: str) -> dict[str, Any]:
    """Count one network."""
    if name not in NETS and (reason := get(name).missing()):
        return {"model": name, "missing": reason}
    mod = canonical(imported(name))
    row: dict[str, Any] = {"model": name, **work(mod)}
    for mode in ("strict", "fast"):
        report = AlgebraReport()
        after = rewrite_algebra(mode, report)(mod)  # type: ignore[arg-type]
        found = Counter(str(step.rule) for step in report.steps)
        found.update({CENTRED: report.centred, SCALED: report.scaled})
        found = +found
        row[mode] = dict(found.most_common())
        row |= {f"{key}_{mode}": value for key, value in work(after).items()}
    return row


def summary_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Compute the figures that the ledger quotes."""
    rows = [row for row in rows if "strict" in row]
    fired = {rule for row in rows for mode in ("strict", "fast") for rule in row[mode]}
    found: dict[str, Any] = {
        "models": len(rows),
        "rules": len(RULES),
        "rules_strict": sum(rule.mode == "strict" for rule in RULES),
        "rules_fired": sum(str(rule) in fired for rule in RULES),
        "rules_never_fired": sum(str(rule) not in fired for rule in RULES),
    }
    for mode in ("strict", "fast"):
        changed = [row for row in rows if row[mode]]
        found[f"models_rewritten_{mode}"] = len(changed)
        for key in ("operators", "bytes"):
            found[f"{key}_removed_{mode}"] = sum(row[key] - row[f"{key}_{mode}"] for row in rows)
            ratios = [row[f"{key}_{mode}"] / row[key] for row in changed]
            found[f"{key}_{mode}_vs_off"] = round(geometric_mean(ratios), 4) if ratios else 1.0
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Give the table of rules: how often each matches, in how many networks, and their names."""
    lines = []
    for rule in [CENTRED, SCALED, *map(str, RULES)]:
        where = {
            row["model"]: max(row[mode].get(rule, 0) for mode in ("strict", "fast")) for row in rows if "strict" in row
        }
        where = {name: count for name, count in where.items() if count}
        names = sorted(where, key=where.get, reverse=True)  # type: ignore[arg-type]
        shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
        lines.append(f"{sum(where.values()):5} {len(where):3}  {rule}: {shown}")
    return "\n".join(lines)


def main() -> None:
    """Read the command line, count, print the table and write the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these networks only")
    add_keep_option(parser)
    add_json_option(parser, "rules")
    arguments = parser.parse_args()
    path = result_path("rules", arguments.json, is_whole=not arguments.only)
    rows = []
    for name in arguments.only or [*NETS, *ZOO]:
        rows.append(kept_or(arguments.keep, {"model": name}, partial(row_of, name)))
        shown = {key: value for key, value in rows[-1].items() if key not in ("model", "strict", "fast")}
        print(f"{name:24}{shown}", flush=True)
    summary = summary_of(rows)
    print(table(rows))
    for key, value in summary.items():
        print(f"{key:28}{value}")
    store(path, "rules", rows, summary)


if __name__ == "__main__":
    main()
