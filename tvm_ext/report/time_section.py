"""The section of the inspect page that shows where the time of a run goes."""

from __future__ import annotations

from html import escape

from tvm_ext.graph.units import bytes_text
from tvm_ext.report.html import bar_cell, code_text, html_table, number_cell, seconds_text, text_cell
from tvm_ext.report.profile import KernelCall, Profile, rate
from tvm_ext.report.profile_chart import LEGEND, profile_chart


def time_section(profile: Profile) -> str:
    """Write the picture of a run and the table of its kernels."""
    limits = profile.limits
    copies = ", ".join(f"{speed / 1e9:.0f} GB/s of {bytes_text(size)}" for size, speed in limits.bandwidths)
    intro = (
        f"A run takes {seconds_text(profile.seconds)} (the median of {profile.runs}) with {profile.threads} threads, "
        f"its kernels {seconds_text(profile.inside)}. The limit of a kernel is what this machine needs at best for its "
        f"arithmetic or its traffic, whichever is more: {limits.flops / 1e9:.0f} GFLOP/s of multiply-adds from "
        f"registers, copies at {copies}. Of convolutions and products of 8-bit integers only the traffic counts. A "
        "multiply-add is two operations (OP), of floats and of integers alike; n/a where the code of a kernel does not "
        "tell how much it computes or moves."
    )
    key = "".join(f'<span class="key flame {style}"><i></i>{escape(words)}</span>' for style, words in LEGEND)
    rows = [_row(call, count, profile) for call, count in profile.by_kernel()]
    heads = ["kernel", "#calls", "#time", "", "#GOP/s", "#GB/s", "#of the limit", "schedule", "nodes or operators"]
    chart = f'<figure>{profile_chart(profile)}</figure><div class="legend">{key}</div>'
    return f"<p>{escape(intro)}</p>{chart}{html_table(heads, rows)}"


def _row(call: KernelCall, count: int, profile: Profile) -> list[str]:
    words = call.layers or call.operators
    more = f" and {len(words) - 3} more" if len(words) > 3 else ""
    return [
        text_cell(code_text(call.kernel), call.kernel),
        number_cell(f"{count:,}", count),
        number_cell(seconds_text(call.seconds), call.seconds),
        bar_cell(call.seconds / profile.inside if profile.inside else 0.0),
        _rate(rate(call.flops, call)),
        _rate(rate(call.nbytes, call)),
        number_cell("n/a" if call.share is None else f"{call.share:.0%}", -1 if call.share is None else call.share),
        text_cell(escape(call.rule or "no rule"), call.rule),
        text_cell(escape(", ".join(words[:3]) + more), ""),
    ]


def _rate(value: float | None) -> str:
    return number_cell("n/a" if value is None else f"{value:,.1f}", -1 if value is None else value)
