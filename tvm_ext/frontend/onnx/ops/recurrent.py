"""RNN, GRU and LSTM of any length: one matrix product for all steps, then the time loop as one TIR function."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax, tirx

from tvm_ext.frontend.onnx.ops.activations import NAMES, Activation, activations
from tvm_ext.frontend.onnx.ops.base import (
    Converter,
    Node,
    add,
    astype,
    dtype_of,
    emit,
    known,
    pad_end,
    reshape,
    take_slice,
    transpose,
)
from tvm_ext.frontend.onnx.ops.integer import dynamic_quantization
from tvm_ext.frontend.onnx.ops.recurrence import GATES, LANES, Recurrence, recurrence_function

_DEFAULT_ACTIVATIONS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
_REVERSE = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_TYPES = ("float16", "float32", "float64")


def _activations(node: Node, cell: str, directions: int) -> tuple[tuple[Activation, ...], ...]:
    defaults = _DEFAULT_ACTIVATIONS[cell]
    names = node.texts("activations") or defaults * directions
    if len(names) != len(defaults) * directions:
        node.damaged(f"attribute activations has {len(names)} entries, {len(defaults) * directions} were expected")
    try:
        found = activations(names, node.numbers("activation_alpha"), node.numbers("activation_beta"))
    except KeyError as error:
        node.refuse(f"activation {error} is not supported, only {', '.join(NAMES)}")
    return tuple(tuple(found[start : start + len(defaults)]) for start in range(0, len(found), len(defaults)))


def _check(node: Node, value: Any, name: str, expected: tuple[Any, ...]) -> None:
    found = node.dims(value, name)
    numbers = [pair for pair in zip(found, expected, strict=False) if all(isinstance(dim, int) for dim in pair)]
    if len(found) != len(expected) or any(one != other for one, other in numbers):
        node.damaged(f"input {name} has shape {found}, {expected} was expected")


def pack_units(bb: relax.BlockBuilder, value: Any, shape: tuple[int, ...], gates: int, hidden: int) -> Any:
    """Cut the gate axis into blocks of units: (D, G·H, ...) -> (D, N, L, G, ...), missing units filled with zeros."""
    directions, rest = shape[0], shape[2:]
    blocks = -(-hidden // LANES)
    value = reshape(bb, value, (directions, gates, hidden, *rest))
    value = pad_end(bb, value, 2, 3 + len(rest), blocks * LANES - hidden)
    value = reshape(bb, value, (directions, gates, blocks, LANES, *rest))
    return transpose(bb, value, (0, 2, 3, 1, *range(4, 4 + len(rest))))


def recurrent_layer(
    bb: relax.BlockBuilder,
    layer: Recurrence,
    x: Any,
    weights: Any,
    recurrent_weights: Any,
    bias: Any | None,
    lengths: Any | None,
    first_hidden: Any | None,
    first_cell: Any | None,
    peepholes: Any | None,
) -> tuple[Any, Any, Any]:
    """Lay the weights out for the time loop, fold that where they are constant, and call it.

    Parameters
    ----------
    bb : relax.BlockBuilder
        Receives the bindings and the function of the loop.
    layer : Recurrence
        What to compute; T steps, B sequences, D directions, H units, G gates.
    x : relax.Expr
        Inputs, shape (T, B, I).
    weights, recurrent_weights, bias, peepholes : relax.Expr or np.ndarray, optional
        As the operator has them: (D, G·H, I), (D, G·H, H), (D, 2·G·H), (D, 3·H).
    lengths : relax.Expr, optional
        Steps of each sequence, shape (B,), int32; needed if ``layer.ragged``.
    first_hidden, first_cell : relax.Expr, optional
        Initial state, (D, B, H); zero if absent.

    Returns
    -------
    tuple of relax.Expr
        All states (T, D, B, H), last state and last cell (D, B, H).
    """
    directions, gates, hidden, batch = len(layer.reverse), layer.gates, layer.hidden, layer.batch
    blocks, dtype = layer.blocks, layer.dtype
    size = int(x.ty.shape[2])
    columns = directions * blocks * gates * LANES
    state_shape = (directions, batch, hidden)
    shapes = ((layer.steps, directions, batch, hidden), state_shape, state_shape)
    if isinstance(batch, int) and batch == 0:  # the loop has no tiles of sequences then to divide by
        states, last_hidden, last_cell = (bb.emit(relax.op.zeros(shape, dtype)) for shape in shapes)
        return states, last_hidden, last_cell

    packed = pack_units(bb, weights, (directions, gates * hidden, size), gates, hidden)
    packed = reshape(bb, transpose(bb, packed, (4, 0, 1, 3, 2)), (size, columns))
    projected = relax.op.matmul(x, emit(bb, packed))

    recurrent_bias: Any = np.zeros((directions, blocks * LANES), dtype)
    if bias is not None:
        half = gates * hidden
        own, recurrent = (take_slice(bb, bias, 1, begin, begin + half) for begin in (0, half))
        if layer.linear_before_reset:
            # The reset gate multiplies the hidden gate's recurrent bias too, so that one goes into the loop.
            kept = 2 * hidden
            recurrent_bias = take_slice(bb, recurrent, 1, kept, half)
            recurrent_bias = pad_end(bb, recurrent_bias, 1, 2, blocks * LANES - hidden)
            recurrent = pad_end(bb, take_slice(bb, recurrent, 1, 0, kept), 1, 2, hidden)
        total = pack_units(bb, add(bb, own, recurrent), (directions, half), gates, hidden)
        total = reshape(bb, transpose(bb, total, (0, 1, 3, 2)), (columns,))
        projected = relax.op.add(projected, emit(bb, total))

    loop_weights = pack_units(bb, recurrent_weights, (directions, gates * hidden, hidden), gates, hidden)
    loop_weights = transpose(bb, loop_weights, (0, 1, 4, 3, 2))

    peephole: Any = np.zeros((directions, 3, blocks * LANES), dtype)
    if peepholes is not None:
        peephole = reshape(bb, peepholes, (directions, 3, hidden))
        peephole = pad_end(bb, peephole, 2, 3, blocks * LANES - hidden)

    zeros = np.zeros((directions, 1, hidden), dtype)  # of all sequences, as many as there are
    loop = recurrence_function(_with_own_extents(layer), first_hidden is None, first_cell is None)
    function = bb.add_func(loop, f"{layer.cell.lower()}_recurrence")
    results = bb.emit(
        relax.call_tir(
            function,
            [
                emit(bb, projected),
                emit(bb, loop_weights),
                emit(bb, recurrent_bias),
                emit(bb, peephole),
                emit(bb, zeros if first_hidden is None else first_hidden),
                emit(bb, zeros if first_cell is None else first_cell),
                emit(bb, np.zeros(1, "int32") if lengths is None else lengths),
            ],
            [relax.TensorType(shape, dtype) for shape in shapes],
        )
    )
    return results[0], results[1], results[2]


def _with_own_extents(layer: Recurrence) -> Recurrence:
    """Give a layer variables of its function's own for the extents that are open."""
    steps = layer.steps if isinstance(layer.steps, int) else tirx.Var("steps", "int64")
    batch = layer.batch if isinstance(layer.batch, int) else tirx.Var("batch", "int64")
    return replace(layer, steps=steps, batch=batch)


class _Recurrent(Converter):
    """What RNN, GRU and LSTM have in common: everything but the cell, which the time loop chooses by name."""

    cell = ""
    quantized_state = False

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give Y, Y_h and, for an LSTM, Y_c."""
        x, weights, recurrent_weights, bias, lengths, first_hidden, first_cell, peepholes = (
            inputs[index] for index in range(8)
        )
        weights, recurrent_weights = known(node, weights), known(node, recurrent_weights)
        return cls.layer(node, bb, x, weights, recurrent_weights, bias, lengths, first_hidden, first_cell, peepholes)

    @classmethod
    def layer(
        cls,
        node: Node,
        bb: relax.BlockBuilder,
        x: Any,
        weights: Any,
        recurrent_weights: Any,
        bias: Any | None,
        lengths: Any | None,
        first_hidden: Any | None,
        first_cell: Any | None,
        peepholes: Any | None,
    ) -> Any:
        """Check the inputs against the attributes, and convert."""
        direction = node.text("direction", "forward")
        if direction not in _REVERSE:
            node.damaged(f"attribute direction is {direction!r}, {', '.join(_REVERSE)} were expected")
        directions, gates = len(_REVERSE[direction]), GATES[cls.cell]
        batch_first = bool(node.integer("layout", 0))
        dtype = dtype_of(x)
        if dtype not in _TYPES:
            node.refuse(f"element type {dtype} is not supported, only {', '.join(_TYPES)}")

        shape = node.dims(x, "X")
        if len(shape) != 3:
            node.damaged(f"input X has shape {shape}, 3 dimensions were expected")
        if not isinstance(shape[2], int):
            node.refuse(f"the vectors of X have {shape[2]} elements, a fixed number is needed")
        batch, steps = shape[:2] if batch_first else (shape[1], shape[0])
        hidden = node.shape(recurrent_weights, "R")[-1]
        _check(node, weights, "W", (directions, gates * hidden, shape[2]))
        _check(node, recurrent_weights, "R", (directions, gates * hidden, hidden))
        state_shape = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
        for value, name, expected in (
            (bias, "B", (directions, 2 * gates * hidden)),
            (lengths, "sequence_lens", (batch,)),
            (first_hidden, "initial_h", state_shape),
            (first_cell, "initial_c", state_shape),
            (peepholes, "P", (directions, 3 * hidden)),
        ):
            if value is not None:
                _check(node, value, name, expected)

        fixed_lengths = None if lengths is None or not isinstance(steps, int) else node.array(lengths)
        if fixed_lengths is not None and not np.all((fixed_lengths >= 0) & (fixed_lengths <= steps)):
            node.damaged(f"sequence_lens {fixed_lengths.tolist()} are not all from 0 to the {steps} steps of X")
        if fixed_lengths is not None and np.all(fixed_lengths == steps):
            lengths = None
        if batch_first:
            x = transpose(bb, x, (1, 0, 2))
            first_hidden, first_cell = (
                None if state is None else transpose(bb, known(node, state), (1, 0, 2))
                for state in (first_hidden, first_cell)
            )
        layer = Recurrence(
            cell=cls.cell,
            steps=steps,
            batch=batch,
            hidden=hidden,
            reverse=_REVERSE[direction],
            activations=_activations(node, cls.cell, directions),
            clip=node.number("clip", 0.0) or None,
            input_forget=bool(node.integer("input_forget", 0)),
            peepholes=peepholes is not None,
            linear_before_reset=bool(node.integer("linear_before_reset", 0)),
            ragged=lengths is not None,
            quantized_state=cls.quantized_state,
            dtype=dtype,
        )
        states, last_hidden, last_cell = recurrent_layer(
            bb,
            layer,
            x,
            weights,
            recurrent_weights,
            None if bias is None else known(node, bias),
            None if lengths is None else astype(bb, known(node, lengths), "int32"),
            first_hidden,
            first_cell,
            None if peepholes is None else known(node, peepholes),
        )
        if batch_first:
            states = transpose(bb, states, (2, 0, 1, 3))
            last_hidden, last_cell = (transpose(bb, state, (1, 0, 2)) for state in (last_hidden, last_cell))
        return node.outputs([states, last_hidden, last_cell][: 3 if cls.cell == "LSTM" else 2])


class RNN(_Recurrent):
    """Elman network with any of the operator's activations."""

    cell = "RNN"


class GRU(_Recurrent):
    """Gated recurrent unit, with the reset gate before or after the recurrent product."""

    cell = "GRU"


class LSTM(_Recurrent):
    """Long short-term memory, with peepholes and coupled gates."""

    cell = "LSTM"


class DynamicQuantizeLSTM(_Recurrent):
    """LSTM with 8-bit weights, whose inputs and state are rounded to 8 bits at run time before each product.

    Inputs are rounded over the range of the whole tensor, states over the range of each sequence's state. The runtime
    rounds the states of a batch over their common range, or that of the rows that one of its threads works on.
    """

    cell = "LSTM"
    quantized_state = True

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give Y, Y_h and Y_c."""
        x, weights, recurrent_weights, bias, lengths, first_hidden, first_cell, peepholes = (
            inputs[index] for index in range(8)
        )
        values, scale, zero_point = dynamic_quantization(bb, emit(bb, x))
        levels = relax.op.subtract(astype(bb, values, "float32"), astype(bb, zero_point, "float32"))
        return cls.layer(
            node,
            bb,
            bb.emit(relax.op.multiply(levels, scale)),
            _dequantized(node, weights, inputs[8], inputs[9], "W"),
            _dequantized(node, recurrent_weights, inputs[10], inputs[11], "R"),
            bias,
            lengths,
            first_hidden,
            first_cell,
            peepholes,
        )


def _dequantized(node: Node, weights: Any, scale: Any, zero_point: Any, name: str) -> np.ndarray:
    """Float32 weights in the layout of an LSTM: (D, I, 4·H) -> (D, 4·H, I)."""
    levels = node.constant(weights, name).astype("int32")
    directions = levels.shape[0]
    spread = (directions, 1, -1)
    shift = node.constant(zero_point, f"{name}_zero_point").astype("int32").reshape(spread)
    floats = (levels - shift) * node.constant(scale, f"{name}_scale").astype("float32").reshape(spread)
    return np.ascontiguousarray(floats.astype("float32").transpose(0, 2, 1))


CONVERTERS: dict[tuple[str, str], type] = {
    ("", "RNN"): RNN,
    ("", "GRU"): GRU,
    ("", "LSTM"): LSTM,
    ("com.microsoft", "DynamicQuantizeLSTM"): DynamicQuantizeLSTM,
}
