"""Recurrent layers of PyTorch as loops, whatever their length.

``torch.export`` writes the steps of ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` one behind the other, as many as the example
has, and fixes the length with that. Within :func:`as_loops` such a layer is one operator of the exported program,
``tvm_ext::recurrence``, which becomes one function with a loop (:mod:`tvm_ext.frontend.onnx.ops.recurrence`), and the
length may stay open::

    with tvm_ext.frontend.torch.recurrent.as_loops():
        program = torch.export.export(module, inputs, dynamic_shapes={"x": {1: torch.export.Dim.AUTO}})

Modules that are given to ``tvm_ext.compile`` are exported so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import tvm
from torch import library
from torch.fx import Node
from torch.overrides import TorchFunctionMode
from tvm import relax

from tvm_ext.frontend.onnx.ops.activations import activations
from tvm_ext.frontend.onnx.ops.base import concatenate, reshape, take_slice, transpose
from tvm_ext.frontend.onnx.ops.recurrence import Recurrence
from tvm_ext.frontend.onnx.ops.recurrent import recurrent_layer
from tvm_ext.frontend.torch.promotion import relax_dtype

_CELLS: Mapping[str, tuple[str, tuple[str, ...], tuple[int, ...]]] = {
    "lstm": ("LSTM", ("Sigmoid", "Tanh", "Tanh"), (0, 3, 1, 2)),
    "gru": ("GRU", ("Sigmoid", "Tanh"), (1, 0, 2)),
    "rnn_tanh": ("RNN", ("Tanh",), (0,)),
    "rnn_relu": ("RNN", ("Relu",), (0,)),
}
"""By PyTorch's name: ONNX's name, activations, and which of PyTorch's gates stands where in ONNX's order."""

_TYPES = (torch.float16, torch.float32, torch.float64)

_SCHEMA = (
    "(str cell, Tensor x, Tensor[] states, Tensor[] weights, bool biased, int layers, bool bidirectional, "
    "bool batch_first) -> (Tensor, Tensor, Tensor)"
)


def _run(
    cell: str,
    x: torch.Tensor,
    states: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    biased: bool,
    layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    first = list(states) if cell == "lstm" else states[0]
    function = getattr(torch._VF, cell)
    results = function(x, first, list(weights), biased, layers, 0.0, False, bidirectional, batch_first)
    return (*results, x.new_empty(0)) if len(results) == 2 else tuple(results)


_recurrence = library.custom_op("tvm_ext::recurrence", _run, mutates_args=(), schema=_SCHEMA)


@_recurrence.register_fake
def _shapes(
    cell: str,
    x: torch.Tensor,
    states: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    biased: bool,
    layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    width = states[0].shape[2] * (2 if bidirectional else 1)
    cells = torch.empty_like(states[0]) if cell == "lstm" else x.new_empty(0)
    return x.new_empty([*x.shape[:2], width]), torch.empty_like(states[0]), cells


class as_loops(TorchFunctionMode):
    """While it is entered, recurrent layers are operators of a program that is exported."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace the function that a recurrent layer calls."""
        found = None if kwargs else _as_operator(getattr(func, "__name__", ""), args)
        return func(*args, **(kwargs or {})) if found is None else found


def _as_operator(name: str, args: Any) -> tuple[torch.Tensor, ...] | None:
    """Call the operator for a layer; None where it cannot stand for it."""
    if name not in _CELLS or len(args) != 9 or not isinstance(args[2], list | tuple):
        return None
    x, first, weights, biased, layers, _, training, bidirectional, batch_first = args
    states = list(first) if name == "lstm" else [first]
    if x.dim() != 3 or x.dtype not in _TYPES or training:
        return None
    if len(weights) != layers * (1 + bidirectional) * (4 if biased else 2):  # with projections
        return None
    found = _recurrence(name, x, states, list(weights), biased, layers, bidirectional, batch_first)
    return tuple(found[: 3 if name == "lstm" else 2])


def loop_decompositions(others: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Make what the layers of a program that was exported outside of :class:`as_loops` become.

    Parameters
    ----------
    others : mapping from operator to decomposition
        What becomes of layers that no loop stands for.

    Returns
    -------
    dict from operator to decomposition
    """

    def made(name: str, other: Callable[..., Any]) -> Callable[..., Any]:
        def decomposed(*args: Any) -> Any:
            found = _as_operator(name, args)
            return other(*args) if found is None else found

        return decomposed

    operators = {name: getattr(torch.ops.aten, name).input for name in _CELLS}
    return {operator: made(name, others[operator]) for name, operator in operators.items() if operator in others}


def fixed_lengths(program: torch.export.ExportedProgram) -> list[str]:
    """Say why the length of a recurrent layer is that of the example, where an open one was asked for.

    ``torch.export`` fixes it without a word, and only a run finds out.
    """
    found = []
    for node in program.graph.nodes:
        name = str(node.target).removeprefix("aten.").removesuffix(".input")
        if node.op != "call_function" or name not in _CELLS or len(node.args) != 9:
            continue
        shape = node.args[0].meta["val"].shape
        length = shape[1 if node.args[8] and len(shape) == 3 else 0]
        if isinstance(length, torch.SymInt) and (steps := length.node.maybe_as_int()) is not None:
            layer = f"{name.split('_')[0].upper()} {node.name!r}"
            found.append(
                f"torch.export fixed the length that {layer} reads to {steps}, as in the example; "
                "for any length give the module itself to tvm_ext.compile, with example_inputs and dynamic, "
                "or export it within tvm_ext.frontend.torch.recurrent.as_loops()"
            )
    return found


def recurrence(importer: Any, node: Node) -> Any:
    """Convert ``tvm_ext::recurrence``: layer by layer, a matrix product and a loop."""
    builder, emit = importer.block_builder, importer.block_builder.emit
    name, x, states, weights, biased, layers, bidirectional, batch_first = node.args
    cell, functions, order = _CELLS[name]
    x, states = importer.env[x], [importer.env[state] for state in states]
    directions, gates = 2 if bidirectional else 1, len(order)
    if batch_first:
        x = transpose(builder, x, (1, 0, 2))
    hidden, dtype = int(states[0].ty.shape[2]), str(x.ty.dtype)
    last: list[list[Any]] = [[], []]
    for number in range(layers):
        steps, batch = (_extent(size) for size in list(x.ty.shape)[:2])
        each = 4 if biased else 2
        given = [_weight(importer, weight) for weight in weights[number * directions * each :][: directions * each]]
        parts = [
            [_in_order(builder, value, order, hidden) for value in given[place::each]] for place in range(each)
        ]  # of each direction: weights of the input, of the state, and both biases
        joined = [_stacked(builder, part) for part in parts]
        layer = Recurrence(
            cell=cell,
            steps=steps,
            batch=batch,
            hidden=hidden,
            reverse=(False, True)[:directions],
            activations=(tuple(activations(functions, (), ())),) * directions,
            linear_before_reset=cell == "GRU",
            dtype=dtype,
        )
        begin = [take_slice(builder, state, 0, number * directions, (number + 1) * directions) for state in states]
        bias = concatenate(builder, joined[2:], 1) if biased else None
        found, *ends = recurrent_layer(
            builder, layer, x, joined[0], joined[1], bias, None, begin[0], begin[1] if gates == 4 else None, None
        )
        for place, end in enumerate(ends):
            last[place].append(emit(end))
        found = transpose(builder, emit(found), (0, 2, 1, 3))
        x = emit(relax.op.reshape(found, [*list(found.ty.shape)[:2], directions * hidden]))
    hidden_states, cells = (emit(relax.op.concat(part, 0)) if layers > 1 else part[0] for part in last)
    if cell != "LSTM":
        cells = emit(relax.op.zeros([0], relax_dtype(node.meta["val"][2].dtype)))
    return (transpose(builder, x, (1, 0, 2)) if batch_first else x), hidden_states, cells


def _extent(size: Any) -> Any:
    return int(size) if isinstance(size, tvm.tirx.IntImm) else size


def _weight(importer: Any, node: Node) -> Any:
    """Give the array of a parameter, or the expression of what the program computes."""
    tensor = importer.parameters.get(node.name)
    return importer.env[node] if tensor is None else tensor.detach().cpu().contiguous().numpy()


def _in_order(builder: Any, value: Any, order: Sequence[int], hidden: int) -> Any:
    """Put the gates, which stand one behind the other along the first axis, into ONNX's order."""
    blocks = [take_slice(builder, value, 0, place * hidden, (place + 1) * hidden) for place in order]
    return concatenate(builder, blocks, 0)


def _stacked(builder: Any, values: Sequence[Any]) -> Any:
    """Put a leading axis of directions in front."""
    shapes = [map(int, value.shape if isinstance(value, np.ndarray) else value.ty.shape) for value in values]
    rows = [reshape(builder, value, (1, *shape)) for value, shape in zip(values, shapes, strict=True)]
    return concatenate(builder, rows, 0)


RECURRENT: Mapping[str, Callable[[Any, Node], Any]] = {"recurrence.default": recurrence}
"""By name of operator and overload."""
