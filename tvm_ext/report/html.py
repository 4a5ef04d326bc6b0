"""Tables, cells and bars of the inspect page, as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tvm_ext.graph.symbolic import Dim, sort_value
from tvm_ext.graph.units import bytes_text, count_text

ROWS_SHOWN = 30


def html_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Show the first rows, and the rest on demand; a head that begins with # is over numbers."""
    columns = "".join(
        f'<th class="number" tabindex="0">{escape(head[1:])}</th>'
        if head.startswith("#")
        else f'<th tabindex="0">{escape(head)}</th>'
        for head in heads
    )

    def part_table(part: Sequence[Sequence[str]]) -> str:
        body = "".join(f"<tr>{''.join(row)}</tr>" for row in part)
        return f'<div class="scroll"><table><thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table></div>'

    rest = rows[ROWS_SHOWN:]
    more = f"<details><summary>{len(rest)} more</summary>{part_table(rest)}</details>" if rest else ""
    return part_table(rows[:ROWS_SHOWN]) + more


def code_text(name: str) -> str:
    """Set a name in code type; a long one may break after an underscore."""
    return f"<code>{escape(name).replace('_', '_<wbr>')}</code>"


def text_cell(content: str, sort: str) -> str:
    """Make a cell; ``sort`` is what its column is sorted by."""
    return f'<td data-sort="{escape(sort)}">{content}</td>'


def number_cell(text: str, sort: float) -> str:
    """Make a cell of a number; ``sort`` is what its column is sorted by."""
    return f'<td class="number" data-sort="{sort}">{escape(text)}</td>'


def bar_cell(share: float) -> str:
    """Make a cell with a bar, as long as a share of 1."""
    return f'<td class="share" data-sort="{share:.6f}"><i style="width:{100 * share:.1f}%"></i></td>'


def flops_cells(value: Dim | None, all_values: Sequence[Dim | None]) -> list[str]:
    """Make a cell of a count of operations, and one of its share of all."""
    return [number_cell(count_text(value), sort_value(value)), share_cell(value, all_values)]


def bytes_cells(value: Dim | None, all_values: Sequence[Dim | None]) -> list[str]:
    """Make a cell of a size, and one of its share of all."""
    return [number_cell(bytes_text(value), sort_value(value)), share_cell(value, all_values)]


def share_cell(value: Dim | None, all_values: Sequence[Dim | None]) -> str:
    """Make a cell with a bar and the share of a sum; empty where it is not known."""
    total = sum(item for item in all_values if isinstance(item, int))
    if not isinstance(value, int) or not total:
        return '<td class="share" data-sort="-1"></td>'
    share = value / total
    text = f"{100 * share:.1f} %" if share >= 0.001 else ""
    return f'<td class="share" data-sort="{share:.6f}"><i style="width:{70 * share:.1f}%"></i><span>{text}</span></td>'


def seconds_text(seconds: float) -> str:
    """Write a time, in milliseconds below a second and in microseconds below a millisecond."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.1f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.1f} µs"
