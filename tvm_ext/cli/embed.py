"""``tvm-ext embed``: which instructions of a target fit the operators of a model, and how."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tvm_ext.cli.calibrate import renew_calibration
from tvm_ext.cli.common import (
    Choice,
    Shapes,
    dynamic_option,
    json_flag,
    model_options,
    print_json,
    step_display,
)

if TYPE_CHECKING:
    from tvm_ext.report.embeddings import EmbeddedOperator


@click.command()
@model_options
@dynamic_option
@click.option(
    "--engine",
    type=Choice(["constraints", "top-down"]),
    default="constraints",
    show_default=True,
    help="What finds the embeddings: a constraint solver, or rewriting of loops until a pattern matches.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="Stop searching one instruction in one operator after so many seconds, and keep what was found; without, a "
    "count of checks ends it, which gives the same everywhere.",
)
@json_flag
def command(
    model: Path,
    target: str,
    input_shapes: Shapes,
    dynamic: str | None,
    engine: str,
    seconds: float | None,
    as_json: bool,
) -> None:
    """Embed the target's multiply-add instructions into the operators of MODEL (.onnx or .pt2); docs/embedding.md."""
    from tvm_ext.frontend import import_model
    from tvm_ext.report.embeddings import embed_model

    renew_calibration(target, quiet=as_json)
    with step_display(quiet=as_json) as report:
        report("import")
        imported = import_model(model, input_shapes=input_shapes or None, dynamic=dynamic)
        found = embed_model(
            imported, target, progress=report, engine=engine, seconds=inf if seconds is None else seconds
        )
    if as_json:
        print_json({"model": str(model), "engine": engine, "operators": [operator.to_json() for operator in found]})
        return
    _print(model, found)


def _print(model: Path, found: tuple[EmbeddedOperator, ...]) -> None:
    from rich.table import Table
    from rich.text import Text

    from tvm_ext.bench.table import wide_console
    from tvm_ext.embedding.ranking import stored_macs
    from tvm_ext.graph.origins import with_nodes
    from tvm_ext.graph.units import bytes_text
    from tvm_ext.report.embeddings import stored_bytes

    console = wide_console()
    covered = sum(operator.best is not None for operator in found)
    console.print(f"[bold]{model.name}[/bold]: {covered} of {len(found)} multiply-accumulate kernels have an embedding")
    table = Table()
    unit = next((operator.best.unit for operator in found if operator.best is not None), "cycles")
    for title in ("kernel", "calls", "instruction", "found", "mapping", "rewrites", "waste", "stored", unit):
        table.add_column(title, justify="right" if title in ("calls", "found", "waste", "stored", unit) else "left")
    for operator in found:
        best = operator.best
        if best is None or best.best is None:
            continue
        item = best.best
        embedding = item.strategy.embedding
        table.add_row(
            Text(with_nodes(operator.kernel, operator.nodes, shown=1)),
            str(operator.calls),
            best.instruction + (" (quantised)" if best.instruction in operator.quantized else ""),
            str(len(best.ranked)),
            str(embedding),
            ", ".join(item.strategy.features),
            f"{stored_macs(item.strategy) / embedding.operator.macs - 1:.0%}",
            bytes_text(stored_bytes(item)),
            f"{item.cost:,.0f}",
        )
    if covered:
        console.print(table)
    for operator in found:
        name = with_nodes(operator.kernel, operator.nodes, shown=1)
        if operator.reason:
            console.print(f"{name}: no embedding: {operator.reason}", markup=False)
        elif operator.best is not None and len(operator.best.ranked) > 1:
            first, second = operator.best.ranked[:2]
            console.print(
                f"{name}: next best takes {second.cost / max(first.cost, 1):.2f} times as long: "
                f"{second.strategy.embedding}",
                markup=False,
            )
    for operator in found:
        for choice in operator.choices:
            if choice.note:
                console.print(f"{operator.kernel}: {choice.instruction}: {choice.note}", markup=False)
