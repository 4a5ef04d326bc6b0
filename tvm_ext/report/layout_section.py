"""The section of the ``inspect`` page on layouts: how each product and convolution is computed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tvm_ext.graph.decisions import Decision
from tvm_ext.report.html import code_text, html_table, text_cell


def layout_section(decisions: Sequence[Decision]) -> str:
    """Render a table of decisions; there is at least one."""
    intro = (
        "How convolutions and products are computed: in channels of a block, in register tiles, with Winograd's "
        "algorithm, in integers, or embedded, that is around an instruction. A plan that computes more than there is "
        "fills register tiles up, and throws the rest away."
    )
    rows = [
        [
            text_cell(escape(", ".join(decision.nodes)), " ".join(decision.nodes)),
            text_cell(code_text(decision.operator), decision.operator),
            text_cell(escape(decision.form), decision.form),
            text_cell(escape(decision.text), decision.text),
        ]
        for decision in decisions
    ]
    return f"<p>{intro}</p>" + html_table(["nodes", "operator", "form", "plan"], rows)
