"""The section of the inspect page that draws which axes of an operator lie on which axes of an instruction."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tvm_ext.embedding.embedding import Embedding
from tvm_ext.embedding.ranking import stored_macs
from tvm_ext.graph.units import bytes_text
from tvm_ext.report.embeddings import EmbeddedOperator, stored_bytes
from tvm_ext.report.html import code_text, html_table, number_cell, text_cell

NODES = 3
"""Nodes of the model that are named below a kernel."""

BOX, HEIGHT, GAP, BETWEEN = 84, 22, 6, 110
"""Width and height of a box, and what is between two, above each other and beside each other: pixels."""


def embedding_section(operators: Sequence[EmbeddedOperator]) -> str:
    """Write a table of multiply-accumulate kernels, each with a drawing of the embedding that costs least."""
    intro = (
        "On the left the axes of the operator with their extents, those that are summed over dashed; on the right the "
        "axes of the instruction that costs least. A line says how many points of an axis lie on one of the "
        "instruction, how far apart, and what the axis is padded to. By default the pipeline embeds operators that no "
        "rule of the layout takes."
    )
    rows = []
    for operator in operators:
        choice = operator.best
        if choice is None or choice.best is None:
            none = [text_cell("none", ""), text_cell(escape(operator.reason), ""), *[number_cell("", -1)] * 3]
            rows.append([*_kernel(operator), *none])
            continue
        item = choice.best
        embedding = item.strategy.embedding
        waste = stored_macs(item.strategy) / embedding.operator.macs - 1
        name = choice.instruction + (" (quantised)" if choice.instruction in operator.quantized else "")
        rows.append([
            *_kernel(operator), text_cell(escape(name), name), text_cell(embedding_drawing(embedding), str(embedding)),
            number_cell(f"{waste:.0%}", waste), number_cell(bytes_text(stored_bytes(item)), stored_bytes(item)),
            number_cell(f"{item.cost:,.0f}", item.cost),
        ])  # fmt: skip
    unit = next((operator.best.unit for operator in operators if operator.best is not None), "cycles")
    heads = ["kernel", "#calls", "instruction", "embedding", "#padding", "#stored", f"#{unit}"]
    return f"<p>{escape(intro)}</p>{html_table(heads, rows)}"


def _kernel(operator: EmbeddedOperator) -> list[str]:
    calls = number_cell(f"{operator.calls:,}", operator.calls)
    nodes = "".join(f"<br>{escape(word)}" for word in operator.nodes[:NODES])
    return [text_cell(code_text(operator.kernel) + nodes, operator.kernel), calls]


def embedding_drawing(embedding: Embedding) -> str:
    """Draw an embedding as SVG: boxes of axes, and a line for each part of an axis that lies on the instruction."""
    axes, lanes = embedding.operator.axes, embedding.instruction.axes
    height = max(len(axes), len(lanes)) * (HEIGHT + GAP)
    width = 2 * BOX + BETWEEN
    parts = [_box(0, at, f"{axis.name}:{axis.extent}", axis.reduces) for at, axis in enumerate(axes)]
    parts += [_box(BOX + BETWEEN, at, f"{axis.name}:{axis.extent}", axis.reduces) for at, axis in enumerate(lanes)]
    for number, digits in enumerate(embedding.digits):
        for digit in digits:
            words = str(digit.size) + (f" by {digit.stride}" if digit.stride > 1 else "")
            if digit.padded != axes[digit.axis].extent:
                words += f" of {digit.padded}"
            start, end = _middle(digit.axis), _middle(number)
            place = f'x="{BOX + BETWEEN / 2:.0f}" y="{(start + end) / 2 - 4:.0f}"'
            parts.append(f'<line x1="{BOX}" y1="{start:.0f}" x2="{BOX + BETWEEN}" y2="{end:.0f}" class="maps"/>')
            parts.append(f'<text {place} text-anchor="middle">{words}</text>')
    return (
        f'<svg class="embedding" role="img" aria-label="{escape(str(embedding))}" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">{"".join(parts)}</svg>'
    )


def _middle(row: int) -> float:
    return row * (HEIGHT + GAP) + HEIGHT / 2


def _box(x: int, row: int, text: str, is_summed: bool) -> str:
    y = row * (HEIGHT + GAP)
    return (
        f'<rect x="{x + 0.5}" y="{y + 0.5}" width="{BOX - 1}" height="{HEIGHT - 1}" rx="3" '
        f'class="axis{" summed" if is_summed else ""}"/>'
        f'<text x="{x + BOX / 2:.0f}" y="{y + HEIGHT - 7}" text-anchor="middle">{escape(text)}</text>'
    )
