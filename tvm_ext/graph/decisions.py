"""What was decided for each operator that a pass rewrote: kept with the module, for metadata and reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import tvm

from tvm_ext.relax_utils import rewritten

DECISIONS_ATTRIBUTE = "tvm_ext.layout"
"""Attribute of a module: its decisions as JSON."""


@dataclass(frozen=True)
class Decision:
    """How one operator is computed.

    Attributes
    ----------
    operator : str
        Such as ``nn.conv2d``.
    nodes : tuple of str
        Words for the nodes of the model that it comes from.
    form : str
        Such as ``winograd`` or ``rows``.
    plan : tuple of (str, value)
        Fields of the plan.
    """

    operator: str
    nodes: tuple[str, ...]
    form: str
    plan: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, operator: str, form: str, plan: Any, nodes: Sequence[str]) -> Decision:
        """Note a plan, which is a frozen dataclass; fields that are not set are left out."""
        plain = json.loads(json.dumps(asdict(plan)))
        fields = ((name, value) for name, value in plain.items() if name != "form" and value is not None)
        return cls(operator.removeprefix("relax."), tuple(nodes), form, tuple(fields))

    def to_json(self) -> dict[str, Any]:
        """Give it as plain data."""
        return asdict(self) | {"nodes": list(self.nodes), "plan": dict(self.plan)}

    @property
    def text(self) -> str:
        """The plan in a line; of what is true or false, the name of what is true."""
        said = [(name, value) for name, value in self.plan if value is not False]
        return ", ".join(name if value is True else f"{name} {_spelt(value)}" for name, value in said)


def _spelt(value: Any) -> str:
    if isinstance(value, dict):
        return f"({', '.join(f'{name} {_spelt(item)}' for name, item in value.items())})"
    return " x ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def with_decisions(mod: tvm.IRModule, decisions: Sequence[Decision]) -> tvm.IRModule:
    """Add decisions to those that a module has."""
    if not decisions:
        return mod
    rows = [*_rows(mod), *(decision.to_json() for decision in decisions)]
    return mod.with_attr(DECISIONS_ATTRIBUTE, json.dumps(rows))


def deciding_pass(name: str, rewriter_of: Callable[[tvm.IRModule], Any]) -> tvm.transform.Pass:
    """Make a pass of a rewriter, as :func:`tvm_ext.relax_utils.rewritten` takes it, that lists its ``decisions``."""

    @tvm.transform.module_pass(opt_level=0, name=name)
    def _deciding(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        rewriter = rewriter_of(mod)
        return with_decisions(rewritten(mod, rewriter), rewriter.decisions)

    return _deciding


def layout_decisions(mod: tvm.IRModule) -> tuple[Decision, ...]:
    """List the decisions that were taken on the way to a module, in the order of the passes and its operators."""
    return tuple(
        Decision(row["operator"], tuple(row["nodes"]), row["form"], tuple(row["plan"].items())) for row in _rows(mod)
    )


def _rows(mod: tvm.IRModule) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        json.loads(str(mod.attrs[DECISIONS_ATTRIBUTE])) if mod.attrs and DECISIONS_ATTRIBUTE in mod.attrs else []
    )
    return rows
