"""Renders an :class:`~tvm_ext.report.inspection.Inspection` as one HTML page that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from tvm_ext.backends.backend import ResourceTable
from tvm_ext.graph.symbolic import Dim, sort_value, total_of
from tvm_ext.graph.units import bytes_text, count_text
from tvm_ext.report.charts import Line, lines_of, memory_chart
from tvm_ext.report.embedding_section import embedding_section
from tvm_ext.report.html import (
    bar_cell,
    bytes_cells,
    code_text,
    flops_cells,
    html_table,
    number_cell,
    seconds_text,
    text_cell,
)
from tvm_ext.report.inspection import Inspection, Kernel, MemoryChart, MemoryProfile
from tvm_ext.report.layout_section import layout_section
from tvm_ext.report.time_section import time_section

_HERE = Path(__file__).parent
_SECTIONS = (
    ("operators", "Operators"),
    ("time", "Time"),
    ("kernels", "Kernels"),
    ("resources", "Registers and shared memory"),
    ("embeddings", "Embeddings"),
    ("groups", "Fusion groups"),
    ("layouts", "Layouts"),
    ("rewriting", "Rewriting"),
    ("memory", "Memory over time"),
    ("tensors", "Biggest tensors"),
    ("phases", "Phases"),
)


def render(inspection: Inspection) -> str:
    """Write the page.

    Returns
    -------
    page : str
        HTML with its style, charts and script inside; it loads nothing and works from a file.
    """
    style = (_HERE / "style.css").read_text(encoding="utf-8")
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    title = escape(Path(inspection.model).name)
    optional = {
        "time": inspection.profile, "resources": inspection.resources, "embeddings": inspection.embeddings is not None,
        "layouts": inspection.layouts,
    }  # fmt: skip
    shown = [row for row in _SECTIONS if optional.get(row[0], True)]
    links = "".join(f'<a href="#{name}">{text}</a>' for name, text in shown)
    body = "".join(
        (
            _header(inspection, title),
            _section("operators", _operators(inspection)),
            _section("time", time_section(inspection.profile)) if inspection.profile else "",
            _section("kernels", _kernels(inspection)),
            _section("resources", _resources(inspection.resources)) if inspection.resources else "",
            _section("embeddings", embedding_section(inspection.embeddings))
            if inspection.embeddings is not None
            else "",
            _section("groups", _groups(inspection)),
            _section("layouts", layout_section(inspection.layouts)) if inspection.layouts else "",
            _section("rewriting", _rewriting(inspection)),
            _section("memory", "".join(_chart(number, chart) for number, chart in enumerate(inspection.memory))),
            _section("tensors", _tensors(inspection)),
            _section("phases", _phases(inspection)),
        )
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{title} - tvm-ext inspect</title><style>{style}</style></head>"
        f"<body><nav>{links}</nav><main>{body}</main><script>{script}</script></body></html>\n"
    )


def _section(name: str, content: str) -> str:
    return f'<section id="{name}"><h2>{dict(_SECTIONS)[name]}</h2>{content}</section>'


def _header(inspection: Inspection, title: str) -> str:
    calls = sum(kernel.calls for kernel in inspection.kernels)
    scheduled = sum(bool(kernel.rule) for kernel in inspection.kernels)
    profiles = inspection.memory[0].profiles
    lowering = sum(phase.seconds for phase in inspection.phases)
    tiles = [
        ("arithmetic", count_text(inspection.flops["total"]), "multiply and add counted apart"),
        ("weights", bytes_text(inspection.constant_bytes), "constants of the model"),
        ("operators", f"{inspection.operator_uses:,}", "as imported"),
        ("kernels", f"{len(inspection.kernels):,}", f"{calls:,} calls, {scheduled:,} scheduled by a rule"),
        ("peak memory", bytes_text(profiles[0].peak) if profiles else "?", "kernels in the importer's order"),
        ("planned memory", bytes_text(inspection.planned_bytes), "storages of the memory plan"),
        ("import and lowering", seconds_text(lowering), "code generation not counted"),
    ]
    boxes = "".join(
        f'<div class="tile"><div class="name">{name}</div><div class="value">{escape(value)}</div>'
        f'<div class="note">{note}</div></div>'
        for name, value, note in tiles
    )
    facts = [
        ("model", escape(inspection.model)),
        ("target", escape(inspection.target)),
        ("inputs", _signature(inspection.inputs)),
        ("outputs", _signature(inspection.outputs)),
        ("versions", escape(", ".join(f"{name} {number}" for name, number in inspection.versions.items()))),
    ]
    if inspection.notes:
        facts.append(("import", "<br>".join(map(escape, inspection.notes))))
    if inspection.unknown_flops:
        names = ", ".join(map(escape, inspection.unknown_flops))
        facts.append(("not counted", f"arithmetic of {names} is not known and is missing in the sums"))
    rows = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in facts)
    return f'<header><h1>{title}</h1><dl>{rows}</dl><div class="tiles">{boxes}</div></header>'


def _signature(tensors: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"<code>{escape(name)}</code> {escape(ty)}" for name, ty in tensors)


def _operators(inspection: Inspection) -> str:
    flops, written = [row.flops for row in inspection.operators], [row.bytes_written for row in inspection.operators]
    rows = [
        [
            text_cell(code_text(row.name), row.name),
            number_cell(f"{row.count:,}", row.count),
            *flops_cells(row.flops, flops),
            *bytes_cells(row.bytes_written, written),
        ]
        for row in inspection.operators
    ]
    intro = "The model as imported, summed up by operator. Views (reshape, tuples) write no bytes."
    heads = ["operator", "#uses", "#FLOPs", "share", "#bytes written", "share"]
    return f"<p>{intro}</p>" + html_table(heads, rows)


def _kernels(inspection: Inspection) -> str:
    totals = [_times(kernel.flops, kernel.calls) for kernel in inspection.kernels]
    moved = [_moved(kernel) for kernel in inspection.kernels]
    rows = []
    for kernel, total, amount in zip(inspection.kernels, totals, moved, strict=True):
        intensity = (
            total / kernel.calls / amount if isinstance(total, int) and isinstance(amount, int) and amount else None
        )
        rule = (
            f'<span class="rule">{escape(kernel.rule)}</span>' if kernel.rule else '<span class="none">no rule</span>'
        )
        rows.append(
            [
                text_cell(code_text(kernel.name), kernel.name),
                number_cell(f"{kernel.calls:,}", kernel.calls),
                number_cell(count_text(kernel.flops), sort_value(kernel.flops)),
                *flops_cells(total, totals),
                number_cell(bytes_text(amount), sort_value(amount)),
                number_cell("?" if intensity is None else f"{intensity:,.2f}", -1 if intensity is None else intensity),
                text_cell(rule, kernel.rule),
            ]
        )
    intro = (
        "Every TIR function that the lowered model calls. Bytes are the tensors one call reads and writes, weights "
        "included. A kernel that no rule took is compiled from its plain loops."
    )
    heads = ["kernel", "#calls", "#FLOPs a call", "#FLOPs", "share", "#bytes a call", "#FLOP/byte", "schedule"]
    return f"<p>{intro}</p>" + html_table(heads, rows)


def _resources(table: ResourceTable) -> str:
    rows = [
        [
            text_cell(escape(str(cell)), str(cell))
            if not head.startswith("#")
            else number_cell(f"{cell:,}" if isinstance(cell, int) else escape(cell), float(str(cell).rstrip("%")))
            for head, cell in zip(table.columns, row, strict=True)
        ]
        for row in table.rows
    ]
    return f"<p>{escape(table.summary)}</p>" + (html_table(table.columns, rows) if rows else "")


def _groups(inspection: Inspection) -> str:
    patterns: dict[tuple[str, ...], list[Kernel]] = {}
    for kernel in inspection.kernels:
        patterns.setdefault(kernel.operators, []).append(kernel)
    rows = []
    for pattern, members in patterns.items():
        inside = total_of(_times(kernel.bytes_inside, kernel.calls) for kernel in members)
        calls = sum(kernel.calls for kernel in members)
        types = members[0].types if len(members[0].types) == len(pattern) else ("",) * len(pattern)
        chips = '<span class="arrow">&rarr;</span><wbr>'.join(
            f'<span class="chip" title="{escape(kind)}">{escape(name)}</span>'
            for name, kind in zip(pattern, types, strict=True)
        )
        names = ", ".join(code_text(kernel.name) for kernel in members)
        rows.append(
            [
                text_cell(f'<div class="chips">{chips}</div>', " ".join(pattern)),
                text_cell(escape(members[0].mapping), members[0].mapping),
                number_cell(str(len(pattern)), len(pattern)),
                number_cell(f"{calls:,}", calls),
                number_cell(bytes_text(inside), sort_value(inside)),
                text_cell(f"<details><summary>{len(members)}</summary>{names}</details>", str(len(members))),
            ]
        )
    intro = (
        "Which operators went into one kernel. Bytes kept inside are the results that only the next operator of the "
        "group reads: without fusion they would be written to memory and read back. The type says how elements of the "
        "operands map to elements of the result; point at an operator for its own."
    )
    heads = ["operators of a kernel, in order", "type", "#operators", "#calls", "#bytes kept inside", "kernels"]
    return f"<p>{intro}</p>" + html_table(heads, rows)


def _rewriting(inspection: Inspection) -> str:
    if not inspection.rewritings:
        return "<p>No arithmetic was rewritten: the option <code>rewrite</code> was off, or no rule applied.</p>"
    before, after = inspection.rewritten_flops
    intro = f"Rules of algebra that were applied. The rewritten parts took {count_text(before)} before"
    rows = [
        [text_cell(code_text(row.rule), row.rule), number_cell(f"{row.count:,}", row.count)]
        for row in inspection.rewritings
    ]
    return f"<p>{intro}, and take {count_text(after)} now.</p>" + html_table(["rule", "#places"], rows)


def _chart(number: int, chart: MemoryChart) -> str:
    head = f"<h3>{escape(chart.title)}</h3><p>{escape(chart.summary)}</p>"
    if not chart.profiles:
        return f'{head}<p class="none">No profile: {escape(chart.missing)}.</p>'
    lines = lines_of(chart.profiles)
    legend = "".join(f'<span class="key"><i class="s{line.color}"></i>{escape(line.label)}</span>' for line in lines)
    data = {
        "steps": max(len(line.profile.during) for line in lines),
        "lines": [{"label": line.label, "color": line.color, "during": line.profile.during} for line in lines],
    }
    # "</" would end the script element early.
    payload = json.dumps(data).replace("</", "<\\/")
    rows = [_profile_row(profile, lines) for profile in chart.profiles]
    heads = ["order", "#peak", "#at step", "largest tensors there"]
    return (
        f'{head}<div class="legend">{legend}</div><figure id="chart{number}">'
        f"{memory_chart(lines, chart.title)}"
        f'<div class="readout"></div><script type="application/json">{payload}</script></figure>'
        + html_table(heads, rows)
    )


def _profile_row(profile: MemoryProfile, lines: Sequence[Line]) -> list[str]:
    color = next(line.color for line in lines if line.profile.during == profile.during)
    shown = profile.live_at_peak[:4]
    named = "<br>".join(f"<code>{escape(n)}</code> {escape(ty)} {bytes_text(size)}" for n, ty, size in shown)
    return [
        text_cell(
            f'<i class="dot s{color}"></i><b>{escape(profile.name)}</b><br>{escape(profile.summary)}', profile.name
        ),
        number_cell(bytes_text(profile.peak), profile.peak),
        number_cell(f"{profile.peak_step:,}", profile.peak_step),
        text_cell(named, ""),
    ]


def _tensors(inspection: Inspection) -> str:
    largest = max((row.nbytes for row in inspection.tensors if isinstance(row.nbytes, int)), default=0) or 1
    rows = []
    for row in inspection.tensors:
        used = ", ".join(row.used_by[:3]) + (f" and {len(row.used_by) - 3} more" if len(row.used_by) > 3 else "")
        rows.append(
            [
                text_cell(code_text(row.name), row.name),
                text_cell(escape(row.type), row.type),
                text_cell(f'<span class="kind {row.kind}">{row.kind}</span>', row.kind),
                number_cell(bytes_text(row.nbytes), sort_value(row.nbytes)),
                bar_cell(row.nbytes / largest if isinstance(row.nbytes, int) else 0),
                text_cell(code_text(row.made_by) if row.made_by else "", row.made_by),
                text_cell(code_text(used) if used else "returned", used),
            ]
        )
    intro = "The largest tensors that kernels pass on, and the largest weights, after the pipeline chose layouts."
    return f"<p>{intro}</p>" + html_table(["tensor", "type", "kind", "#bytes", "", "made by", "read by"], rows)


def _phases(inspection: Inspection) -> str:
    longest = max((phase.seconds for phase in inspection.phases), default=0.0)
    rows = [
        [
            text_cell(f"<b>{escape(phase.name)}</b>", phase.name),
            text_cell(escape(phase.summary), phase.summary),
            number_cell(seconds_text(phase.seconds), phase.seconds),
            bar_cell(phase.seconds / longest if longest else 0),
            number_cell(f"{phase.nodes:,}", phase.nodes),
            number_cell(f"{phase.kernels:,}", phase.kernels),
        ]
        for phase in inspection.phases
    ]
    intro = "Wall-clock time of each phase in this run, and what the module holds afterwards."
    return f"<p>{intro}</p>" + html_table(["phase", "what it does", "#time", "", "#bindings", "#TIR functions"], rows)


def _moved(kernel: Kernel) -> Dim | None:
    return total_of((kernel.bytes_read, kernel.bytes_written))


def _times(size: Dim | None, count: int) -> Dim | None:
    return None if size is None else size * count
