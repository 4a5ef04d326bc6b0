"""Says which ONNX operators can be imported, and puts those of a model that cannot into one error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx
from onnx import helper
from tvm.relax.frontend.onnx import onnx_frontend

from tvm_ext.errors import UnsupportedOperatorError
from tvm_ext.frontend.onnx.converters import CONVERTERS
from tvm_ext.frontend.onnx.graph import domain_of

# TVM's table goes by operator name alone; these names in it are operators of onnxruntime.
MICROSOFT_OPERATORS = frozenset(
    ["BiasGelu", "EmbedLayerNormalization", "FastGelu", "Gelu", "MatMulInteger16", "SkipLayerNormalization"]
)

CONTROL_FLOW = frozenset(["If", "Loop"])
"""Converted by the importer itself."""

NO_CONVERTER = "there is no converter for it"

Attributes = Mapping[str, Any]

# Variants that TVM's own converters take without complaint and compute wrongly, by comparison with the test cases of
# ONNX. A converter of this package for the operator has no such gaps.
WRONG_IN_TVM: dict[str, tuple[Callable[[onnx.NodeProto, Attributes], bool], str]] = {
    "Dropout": (
        lambda node, given: len(node.input) > 2 and bool(node.input[2]),
        "TVM cannot compute its training mode",
    ),
    "IsInf": (
        lambda node, given: given.get("detect_negative", 1) == 0 or given.get("detect_positive", 1) == 0,
        "TVM cannot tell positive from negative infinity",
    ),
    "LayerNormalization": (lambda node, given: given.get("axis", -1) == 0, "TVM cannot normalise over all axes"),
    "SpaceToDepth": (lambda node, given: given.get("mode", b"DCR") != b"DCR", "TVM computes only its mode DCR"),
}


@dataclass(frozen=True)
class UnsupportedNode:
    """A node that cannot be imported.

    Attributes
    ----------
    label : str
        Words that let a person find it in the model.
    domain : str
        Of its operator.
    reason : str
    """

    label: str
    domain: str
    reason: str


@cache
def stock_converters() -> Mapping[str, Any]:
    """TVM's own converters, by operator."""
    return onnx_frontend._get_convert_map()


def find_converter(node: onnx.NodeProto) -> Any:
    """Find the converter class of a node: this package's, else TVM's.

    Raises
    ------
    NotImplementedError
        If there is none, or it would compute something else; the message is the reason.
    """
    domain = domain_of(node)
    if (domain, node.op_type) in CONVERTERS:
        return CONVERTERS[domain, node.op_type]
    found = None
    if domain == "" or (domain == "com.microsoft" and node.op_type in MICROSOFT_OPERATORS):
        found = stock_converters().get(node.op_type)
    if found is None:
        raise NotImplementedError(NO_CONVERTER)
    applies, reason = WRONG_IN_TVM.get(node.op_type, (None, ""))
    if applies is not None and applies(node, {item.name: helper.get_attribute_value(item) for item in node.attribute}):
        raise NotImplementedError(reason)
    return found


def is_supported(node: onnx.NodeProto) -> bool:
    """Whether a node can be imported, its inputs permitting."""
    if domain_of(node) == "" and node.op_type in CONTROL_FLOW:
        return True
    try:
        find_converter(node)
    except NotImplementedError:
        return False
    return True


def unsupported_error(
    source: str, nodes: Sequence[UnsupportedNode], unfolded: Sequence[str] = ()
) -> UnsupportedOperatorError:
    """Put all nodes that cannot be imported into one error; those with the same reason share it.

    Parameters
    ----------
    source : str
        Begins the message.
    nodes : sequence of UnsupportedNode
    unfolded : sequence of str
        Sentences for constant nodes that could not be computed: often the cause of what failed after them.
    """
    by_reason: dict[str, list[str]] = {}
    for node in nodes:
        domain = node.domain if node.domain.isprintable() else repr(node.domain)
        by_reason.setdefault(node.reason, []).append(f"{node.label} ({domain or 'ai.onnx'})")
    listed = "; ".join(f"{', '.join(labels)}: {reason}" for reason, labels in by_reason.items())
    count = f"{len(nodes)} nodes" if len(nodes) != 1 else "1 node"
    cause = f" (perhaps because {'; '.join(unfolded[:2])})" if unfolded else ""
    return UnsupportedOperatorError(
        f"{source}: {count} cannot be imported: {listed}{cause}; export the model without them, or cut them off"
    )
