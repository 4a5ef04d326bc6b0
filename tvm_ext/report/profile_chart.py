"""A picture of a run: kernels side by side in their order, as wide as they take long, their operators below."""

from __future__ import annotations

from html import escape

from tvm_ext.report.html import seconds_text
from tvm_ext.report.profile import KernelCall, Profile, rate

_WIDTH, _ROW, _GAP = 960, 26, 2
_NARROWEST = 0.4
"""Pixels below which a kernel is not drawn by itself, but together with its neighbours."""

_LEVELS = ((0.75, "near"), (0.5, "fair"), (0.25, "far"), (0.0, "farthest"))
LEGEND = (
    ("near", "at 75 % of the limit or more"),
    ("fair", "at 50 %"),
    ("far", "at 25 %"),
    ("farthest", "below"),
    ("unknown", "limit not known"),
)
"""Styles of kernels, by the share of its time that the machine would need at best."""

_LETTER = 6.6
"""Pixels of a letter of the chart's font, about."""


def profile_chart(profile: Profile) -> str:
    """Draw three rows as inline SVG: the run, its kernels in order, and what is fused into each.

    A kernel is the darker the further it is from what the machine can do. How its time divides among its operators is
    not known: they share its width evenly.
    """
    total = max(profile.seconds, profile.inside) or 1.0
    scale = _WIDTH / total
    inside = seconds_text(profile.inside)
    parts = [
        f'<svg class="chart flame" viewBox="0 0 {_WIDTH} {3 * (_ROW + _GAP)}" role="img" '
        f'aria-label="kernels of a run, as wide as they take long">',
        _box(0, 0, profile.inside * scale, f"kernels {inside}", "run", inside),
    ]
    outside = total - profile.inside
    if outside * scale > _NARROWEST:
        words = f"outside of kernels {seconds_text(outside)}: calls, allocation, results"
        parts.append(_box(profile.inside * scale, 0, outside * scale, "outside", "run outside", words))
    start, pending = 0.0, 0.0
    for call in profile.calls:
        width = (call.seconds + pending) * scale
        if width < _NARROWEST:
            pending += call.seconds
            continue
        x = start * scale
        parts.append(_box(x, 1, width, call.kernel, f"kernel {_level(call)}", _words(call)))
        share = width / max(1, len(call.operators))
        for number, operator in enumerate(call.operators):
            title = f"{operator} in {call.kernel}"
            parts.append(_box(x + number * share, 2, share, operator, "operator", title))
        start, pending = start + call.seconds + pending, 0.0
    return "".join(parts) + "</svg>"


def _level(call: KernelCall) -> str:
    """Name the style of a kernel by the share of its time that the machine would need at best."""
    share = call.share
    return "unknown" if share is None else next(name for least, name in _LEVELS if share >= least)


def _words(call: KernelCall) -> str:
    figures = [f"{call.kernel}: {seconds_text(call.seconds)}"]
    if (gflops := rate(call.flops, call)) is not None:
        figures.append(f"{gflops:.1f} GOP/s")
    if (gbytes := rate(call.nbytes, call)) is not None:
        figures.append(f"{gbytes:.1f} GB/s")
    if call.share is not None:
        figures.append(f"{call.share:.0%} of the limit")
    return ", ".join([*figures, call.rule or "no rule", *call.layers[:3]])


def _box(x: float, row: int, width: float, text: str, style: str, title: str) -> str:
    y = row * (_ROW + _GAP)
    letters = int((width - 8) / _LETTER)
    shown = text if len(text) <= letters else f"{text[: letters - 1]}…" if letters > 3 else ""
    label = f'<text x="{x + 4:.1f}" y="{y + 17}">{escape(shown)}</text>' if shown else ""
    return (
        f'<g class="{style}"><title>{escape(title)}</title>'
        f'<rect x="{x:.2f}" y="{y}" width="{max(width - 0.5, 0.2):.2f}" height="{_ROW}" rx="2"/>{label}</g>'
    )
