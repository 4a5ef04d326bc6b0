"""How the instructions of a target fit the operators of a model: what was found, what was chosen, why others lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any

import tvm
from tvm import relax

from tvm_ext.backends.registry import backend_of
from tvm_ext.embedding.budget import Budget
from tvm_ext.embedding.choice import Choice, Offer, choose, quantized
from tvm_ext.embedding.dataflow import Dataflow
from tvm_ext.embedding.ranking import Ranked, stored_macs
from tvm_ext.embedding.read import instruction_dataflow, read_products
from tvm_ext.errors import EmbeddingError, TargetError
from tvm_ext.frontend import ImportedModel
from tvm_ext.graph.origins import all_origins, bindings_of, telling
from tvm_ext.target import resolve_target

_OTHERS = 3


@dataclass(frozen=True)
class EmbeddedOperator:
    """A multiply-accumulate operator of a model.

    Attributes
    ----------
    kernel : str
        Name of its function.
    block : str
    nodes : tuple of str
        Words for the nodes of the model that its calls come from, as far as they are known.
    calls : int
        How often the model calls it.
    operator : Dataflow or None
        None where it could not be read.
    reason : str
        Why not, or why no instruction fits; empty if one does.
    choices : tuple of Choice
        One for each instruction of the target.
    quantized : frozenset of str
        Instructions that take it with its floats quantised.
    """

    kernel: str
    block: str
    nodes: tuple[str, ...]
    calls: int
    operator: Dataflow | None
    reason: str
    choices: tuple[Choice, ...] = ()
    quantized: frozenset[str] = field(default=frozenset())

    @property
    def best(self) -> Choice | None:
        """The instruction that costs least."""
        found = [choice for choice in self.choices if choice.ranked]
        return min(found, key=lambda choice: choice.ranked[0].cost, default=None)

    def to_json(self) -> dict[str, Any]:
        """Give what was found as JSON knows it."""
        best = self.best
        return {
            "kernel": self.kernel,
            "block": self.block,
            "nodes": list(self.nodes),
            "calls": self.calls,
            "dataflow": None if self.operator is None else str(self.operator),
            "reason": self.reason,
            "chosen": None if best is None else best.instruction,
            "instructions": [_choice_json(choice, choice.instruction in self.quantized) for choice in self.choices],
        }


def _choice_json(choice: Choice, is_quantized: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "instruction": choice.instruction, "quantized": is_quantized, "candidates": len(choice.ranked),
        "programs": choice.programs, "reason": choice.reason, "note": choice.note,
        "refused": dict(choice.refused),
    }  # fmt: skip
    if choice.best is not None:
        found["best"] = _ranked_json(choice.best, choice.unit)
        found["others"] = [
            _ranked_json(other, choice.unit) | {"lost_by": round(other.cost / max(choice.best.cost, 1), 3)}
            for other in choice.ranked[1 : 1 + _OTHERS]
        ]
    return found


def _ranked_json(item: Ranked, unit: str) -> dict[str, Any]:
    embedding = item.strategy.embedding
    return {
        "mapping": embedding.mapping(),
        "features": list(item.strategy.features),
        "padding_waste": round(stored_macs(item.strategy) / embedding.operator.macs - 1, 4),
        "bytes": stored_bytes(item),
        unit: round(item.cost),
    }


def stored_bytes(item: Ranked) -> int:
    """Bytes of all operands as they are stored for the instruction."""
    operands = item.strategy.operands
    return sum(stored.elements * tvm.DataType(stored.access.dtype).bits // 8 for stored in operands)


def embed_model(
    imported: ImportedModel,
    target: Any = None,
    progress: Callable[[str], None] = lambda step: None,
    engine: str = "constraints",
    seconds: float = inf,
) -> tuple[EmbeddedOperator, ...]:
    """Embed the instructions of a target into every multiply-accumulate operator of a model.

    Instructions of integers take operators of float32 as quantising would leave them.

    Parameters
    ----------
    imported : ImportedModel
    target : str, dict or Target, optional
        This machine, unless it says otherwise.
    progress : callable
        Gets the name of each step.
    engine : str
        What finds the embeddings: one of :data:`tvm_ext.embedding.choice.ENGINES`.
    seconds : float
        For searching one instruction in one operator, beside the count of checks that always ends a search; what was
        found until then is kept.

    Raises
    ------
    TargetError
        If no instructions are known of the target.
    """
    resolved = resolve_target(target)
    offers = backend_of(resolved).instructions(resolved)
    if not offers:
        which = ", ".join(
            f"{key} {resolved.attrs[key]}" for key in ("mcpu", "mtriple", "mattr") if key in resolved.attrs
        )
        raise TargetError(
            f"no instructions that multiply and add are known of target {resolved.kind.name}"
            f"{f' ({which})' if which else ''}; add rows to "
            "tvm_ext.schedules.instructions, and name them in the target's row"
        )
    progress("legalize")
    legalized = relax.transform.LegalizeOps(enable_warning=False)(imported.mod)
    calls = _calls(legalized)
    found = []
    for variable, func in sorted(legalized.functions.items(), key=lambda item: item[0].name_hint):
        name = variable.name_hint
        if not isinstance(func, tvm.tirx.PrimFunc) or name not in calls:
            continue
        for block, operator in read_products(func).items():
            progress(f"embed {name}")
            found.append(_embedded(name, block, *calls[name], operator, offers, engine, seconds))
    return tuple(found)


def _embedded(
    kernel: str,
    block: str,
    nodes: tuple[str, ...],
    calls: int,
    operator: Dataflow | EmbeddingError,
    offers: Any,
    engine: str,
    seconds: float,
) -> EmbeddedOperator:
    if isinstance(operator, EmbeddingError):
        return EmbeddedOperator(kernel, block, nodes, calls, None, str(operator))
    choices, converted = [], set()
    for offer in offers:
        taken = operator
        if _is_float(operator) and not _is_float_instruction(offer):
            try:
                taken = quantized(operator, offer.instruction)
            except EmbeddingError as error:
                choices.append(Choice(offer.instruction.name, reason=str(error)))
                continue
            converted.add(offer.instruction.name)
        choices.append(choose(taken, offer, engine, Budget(seconds=seconds)))
    # What has other types does not say anything of the operator.
    near = [at for at, offer in enumerate(offers) if _is_float_instruction(offer) == _is_float(operator)]
    reason = "" if any(choice.ranked for choice in choices) else choices[near[0] if near else 0].reason
    return EmbeddedOperator(kernel, block, nodes, calls, operator, reason, tuple(choices), frozenset(converted))


def _is_float(operator: Dataflow) -> bool:
    return "float" in operator.output.dtype


def _is_float_instruction(offer: Offer) -> bool:
    return _is_float(instruction_dataflow(offer.instruction))


def _calls(mod: tvm.IRModule) -> dict[str, tuple[tuple[str, ...], int]]:
    """List the nodes that the calls of each kernel come from, and count its calls."""
    counts: dict[str, int] = {}
    nodes: dict[str, list[str]] = {}
    for func in mod.functions.values():
        if not isinstance(func, relax.Function):
            continue
        origins = all_origins(func)

        def visit(expr: Any) -> None:
            if isinstance(expr, relax.Call) and expr.args and isinstance(expr.args[0], tvm.ir.GlobalVar):
                name = expr.args[0].name_hint
                counts[name] = counts.get(name, 0) + 1

        relax.analysis.post_order_visit(func, visit)
        for binding in bindings_of(func.body):
            if isinstance(binding.value, relax.Call) and isinstance(binding.value.args[0], tvm.ir.GlobalVar):
                nodes.setdefault(binding.value.args[0].name_hint, []).extend(telling(origins[binding.var]))
    return {name: (tuple(dict.fromkeys(nodes.get(name, ()))), count) for name, count in counts.items()}
