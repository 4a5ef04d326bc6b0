"""The time loop of RNN, GRU and LSTM layers as one TIR function.

The projection of the inputs needs no loop and stays outside, as one matrix product for all steps. What is left, a
matrix-vector product and the gates per step, is bound to its order. As a graph of ten operators per step it would cost
compile time in proportion to T and call as many kernels; one function compiles in the same 0.1 s for any T and keeps
the state in cache.

Layout: hidden units are cut into blocks of ``LANES``. A block holds, for each input unit, the weights of all gates of
its units, so that a block's gates are ready together and its new state is computed while they are in registers.
Sequences of a batch and the directions are independent of each other: they are the parallel outer loop, in tiles of
``batch_tile`` sequences that share the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from tvm_ext.frontend.index_limits import OPERAND_LIMITS
from tvm_ext.frontend.onnx.ops.activations import Activation
from tvm_ext.relax_utils import FUNCTION_OPERATIONS, STEP_OPERATIONS
from tvm_ext.schedules.annotations import RECURRENT_ATTRIBUTE

LANES = 16
BATCH_TILE = 4
WAITING = 4  # times as long as independent operations take those that each wait for the one before
_LENGTHS = 6  # among the operands
_LONGEST = 2**31 - 1  # of a sequence of open length; the loop ends where the steps do
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@dataclass(frozen=True)
class Recurrence:
    """What the time loop of a recurrent layer computes.

    Attributes
    ----------
    cell : str
        ``RNN``, ``GRU`` or ``LSTM``.
    steps, batch, hidden : int
        Number of time steps T, of sequences B, of hidden units H. The first two may be variables: they are open then.
    reverse : tuple of bool
        For each direction, whether it runs backwards.
    activations : tuple of tuple of Activation
        For each direction, in the operator's order: RNN f; GRU f, g; LSTM f, g, h.
    clip : float, optional
        Bound of what enters an activation of a gate.
    input_forget : bool
        LSTM: the forget gate is 1 - input gate.
    peepholes : bool
        LSTM: the cell state enters the gates.
    linear_before_reset : bool
        GRU: the reset gate multiplies the projected state, not the state.
    ragged : bool
        Sequences have their own lengths.
    quantized_state : bool
        The recurrent product sees the state rounded to 256 levels over its range, as with integer weights.
    dtype : str
        Of all tensors; float16 is computed in float32.
    """

    cell: str
    steps: Any
    batch: Any
    hidden: int
    reverse: tuple[bool, ...]
    activations: tuple[tuple[Activation, ...], ...]
    clip: float | None = None
    input_forget: bool = False
    peepholes: bool = False
    linear_before_reset: bool = False
    ragged: bool = False
    quantized_state: bool = False
    dtype: str = "float32"

    @property
    def gates(self) -> int:
        """Number of gates, G."""
        return GATES[self.cell]

    @property
    def real(self) -> str:
        """Element type of the computation."""
        return "float32" if self.dtype == "float16" else self.dtype

    @property
    def blocks(self) -> int:
        """Number of blocks of hidden units."""
        return -(-self.hidden // LANES)

    def activation(self, index: int, direction: Any, x: Any) -> Any:
        """Apply the ``index``-th activation of a direction to the clipped value.

        The cell state of an LSTM enters its last activation unclipped, as in onnxruntime.
        """
        if self.clip is not None and index < 2:
            bound = T.cast(T.float64(self.clip), str(x.ty.dtype))
            x = T.max(T.min(x, bound), -bound)
        first, last = self.activations[0][index], self.activations[-1][index]
        if first == last:
            return first(x)
        return T.if_then_else(direction == 0, first(x), last(x))

    def position(self, direction: Any, step: Any, length: Any) -> Any:
        """Index of the input that a direction reads at a step; past its length a sequence reads in place."""
        if self.ragged:
            backwards = T.if_then_else(step < length, length - 1 - step, step)
        else:
            backwards = self.steps - 1 - step
        if all(self.reverse):
            return backwards
        if not any(self.reverse):
            return step
        return T.if_then_else(direction == 0, step, backwards)


@dataclass(frozen=True)
class _Lanes:
    """Units of one sequence that a vector instruction updates together; indices and values are TIR expressions.

    The accumulators of the gates are in a small buffer, so that every gate is computed once, wherever it is used.
    """

    layer: Recurrence
    direction: Any
    sequence: Any  # within the tile
    lane: Any
    unit: Any
    gates: Any
    cells: Any
    peepholes: Any
    before: Any  # the unit's old state
    alive: Any  # whether the sequence has not ended; None if all sequences are equally long

    def gate(self, index: int) -> Any:
        return self.gates[self.sequence, index, self.lane]

    def set_gate(self, index: int, value: Any) -> None:
        T.buffer_store(self.gates, value, [self.sequence, index, self.lane])

    @property
    def cell(self) -> Any:
        return self.cells[self.sequence, self.unit]

    def set_cell(self, value: Any) -> None:
        T.buffer_store(self.cells, self.unless_ended(value, self.cell), [self.sequence, self.unit])

    def activate(self, index: int, value: Any) -> Any:
        return self.layer.activation(index, self.direction, value)

    def peep(self, gate: int, row: int) -> Any:
        if not self.layer.peepholes:
            return self.gate(gate)
        weight = T.cast(self.peepholes[self.direction, row, self.unit], self.layer.real)
        return self.gate(gate) + weight * self.cell

    def unless_ended(self, new: Any, old: Any) -> Any:
        return new if self.alive is None else T.if_then_else(self.alive, new, old)


def _rnn(lanes: _Lanes) -> Any:
    """Give the new state; gate 0 holds the whole sum."""
    return lanes.activate(0, lanes.gate(0))


def _lstm(lanes: _Lanes) -> Any:
    """Update the cell and give the new state; gates in ONNX's order: input, output, forget, cell."""
    lanes.set_gate(0, lanes.activate(0, lanes.peep(0, row=0)))
    if lanes.layer.input_forget:
        lanes.set_gate(2, tirx.const(1.0, lanes.layer.real) - lanes.gate(0))
    else:
        lanes.set_gate(2, lanes.activate(0, lanes.peep(2, row=2)))
    lanes.set_gate(3, lanes.activate(1, lanes.gate(3)))
    lanes.set_cell(lanes.gate(2) * lanes.cell + lanes.gate(0) * lanes.gate(3))
    lanes.set_gate(1, lanes.activate(0, lanes.peep(1, row=1)))
    return lanes.gate(1) * lanes.activate(2, lanes.cell)


def _gru(lanes: _Lanes, projected: Any) -> Any:
    """Give the new state; gates in ONNX's order: update, reset, hidden. Gate 2 holds the recurrent part only."""
    lanes.set_gate(0, lanes.activate(0, lanes.gate(0)))
    lanes.set_gate(1, lanes.activate(0, lanes.gate(1)))
    lanes.set_gate(2, projected + lanes.gate(1) * lanes.gate(2))
    return _gru_output(lanes)


def _gru_output(lanes: _Lanes) -> Any:
    """Give the new state from the update gate and the sum of the hidden gate."""
    update = lanes.gate(0)
    return (tirx.const(1.0, lanes.layer.real) - update) * lanes.activate(1, lanes.gate(2)) + update * lanes.before


def _rounded_to_levels(value: Any, low: Any, high: Any) -> Any:
    """Round to the nearest of 256 levels from low to high, of which one is zero."""
    zero, one, levels = (tirx.const(number, str(value.ty.dtype)) for number in (0.0, 1.0, 255.0))
    scale = T.Select(high > low, (high - low) / levels, one)
    zero_point = T.round(T.min(T.max(-low / scale, zero), levels))
    return (T.min(T.max(T.round(value / scale) + zero_point, zero), levels) - zero_point) * scale


def batch_tile(batch: Any, directions: int) -> int:
    """Choose how many sequences share what is loaded of the weights, which mostly come from the L2 cache.

    Of more than two, two threads have a tile each, of all directions. What the last tile lacks is computed for nothing.
    """
    if not isinstance(batch, int) or batch < 2:
        return 1
    tiles = max(-(-batch // BATCH_TILE), 2 if batch > 2 and directions == 1 else 1)
    return -(-batch // tiles)


def recurrence_function(layer: Recurrence, same_hidden: bool = False, same_cell: bool = False) -> Any:
    """Build the time loop.

    Parameters of the function, with D directions, N = ``layer.blocks`` and L = ``LANES``:

    - projected (T, B, D·N·G·L): projected inputs with biases, blocked as (D, N, G, L)
    - weights (D, N, H, G, L): recurrent weights
    - bias (D, N·L): recurrent bias of a GRU's hidden gate; read with ``linear_before_reset`` only
    - peepholes (D, 3, N·L): weights from the cell to the input, output and forget gate; read with ``peepholes`` only
    - first hidden state, first cell (D, B, H), or (D, 1, H); the cell is read by an LSTM only
    - lengths (B,), int32: read with ``ragged`` only, (1,) without
    - outputs: all states (T, D, B, H), last state (D, B, H), last cell (D, B, H)

    Parameters
    ----------
    layer : Recurrence
        What to compute.
    same_hidden, same_cell : bool
        All sequences begin with the same one.

    Returns
    -------
    tvm.tirx.PrimFunc
    """
    steps, batch, hidden, blocks, gates = layer.steps, layer.batch, layer.hidden, layer.blocks, layer.gates
    directions, width, dtype, real = len(layer.reverse), layer.blocks * LANES, layer.dtype, layer.real
    tile = batch_tile(batch, directions)
    tiles = -(-batch // tile)
    sequences = T.parallel if not isinstance(tiles, int) or directions * tiles > 1 else T.serial
    zero = tirx.const(0.0, real)
    # A reset gate that multiplies the state delays the hidden gate to a second product, on the reset state.
    reset_first = layer.cell == "GRU" and not layer.linear_before_reset
    first_gates = 2 if reset_first else gates
    # A reset gate that multiplies the product keeps the projected input out of it.
    projected_gates = 2 if layer.cell == "GRU" else gates

    def row(index: Any, i: Any) -> Any:
        # The last tile may reach past the batch: its surplus row computes the last sequence again.
        return T.min(index % tiles * tile + i, batch - 1)

    hidden_rows, cell_rows = 1 if same_hidden else batch, 1 if same_cell else batch
    length_rows = batch if layer.ragged else 1

    def start(same: bool, index: Any, i: Any) -> Any:
        return 0 if same else row(index, i)

    def column(d: Any, n: Any, g: Any, x: Any) -> Any:
        return ((d * blocks + n) * gates + g) * LANES + x

    def up(value: Any) -> Any:
        return value if dtype == real else T.cast(value, real)

    def down(value: Any) -> Any:
        return value if dtype == real else T.cast(value, dtype)

    def alive(t: Any, length: Any) -> Any:
        return t < length if layer.ragged else None

    def unless_ended(t: Any, length: Any, value: Any) -> Any:
        return T.if_then_else(t < length, value, zero) if layer.ragged else value

    @T.prim_func(private=True, s_tir=True)
    def recurrence(
        projected_handle: T.handle,
        weights_handle: T.handle,
        bias_handle: T.handle,
        peepholes_handle: T.handle,
        first_hidden_handle: T.handle,
        first_cell_handle: T.handle,
        lengths_handle: T.handle,
        states_handle: T.handle,
        last_hidden_handle: T.handle,
        last_cell_handle: T.handle,
    ) -> None:
        projected = T.match_buffer(projected_handle, (steps, batch, directions * blocks * gates * LANES), dtype)
        weights = T.match_buffer(weights_handle, (directions, blocks, hidden, gates, LANES), dtype)
        bias = T.match_buffer(bias_handle, (directions, width), dtype)
        peepholes = T.match_buffer(peepholes_handle, (directions, 3, width), dtype)
        first_hidden = T.match_buffer(first_hidden_handle, (directions, hidden_rows, hidden), dtype)
        first_cell = T.match_buffer(first_cell_handle, (directions, cell_rows, hidden), dtype)
        lengths = T.match_buffer(lengths_handle, (length_rows,), "int32")
        states = T.match_buffer(states_handle, (steps, directions, batch, hidden), dtype)
        last_hidden = T.match_buffer(last_hidden_handle, (directions, batch, hidden), dtype)
        last_cell = T.match_buffer(last_cell_handle, (directions, batch, hidden), dtype)
        for index in sequences(directions * tiles):
            with T.sblock("recurrence"):
                v = T.axis.spatial(directions * tiles, index)
                d = T.meta_var(v // tiles)
                # Two states, read and written in turn: a step must not see what it has just computed.
                state = T.sblock_alloc_buffer((2, tile, width), real, scope="local")
                cell = T.sblock_alloc_buffer((tile, width), real, scope="local")
                gate = T.sblock_alloc_buffer((tile, gates, LANES), real, scope="local")
                update = T.sblock_alloc_buffer((tile, width), real, scope="local")
                reset = T.sblock_alloc_buffer((tile, width), real, scope="local")
                bounds = T.sblock_alloc_buffer((tile, 2), real, scope="local")
                operand = T.sblock_alloc_buffer((tile, width), real, scope="local")
                length = T.sblock_alloc_buffer((tile,), "int32", scope="local")
                for i in range(tile):
                    if layer.ragged:
                        # What a caller gives is checked before; what a model computes may be anything.
                        length[i] = T.max(T.min(lengths[row(v, i)], T.cast(steps, "int32")), 0)
                    for j in range(hidden):
                        state[0, i, j] = up(first_hidden[d, start(same_hidden, v, i), j])
                        cell[i, j] = up(first_cell[d, start(same_cell, v, i), j])
                    # Lanes that stand for no unit are computed like the others.
                    for j in T.serial(hidden, width):
                        state[0, i, j] = zero
                        cell[i, j] = zero
                for t in range(steps):
                    now, after = T.meta_var(t % 2), T.meta_var((t + 1) % 2)
                    if layer.quantized_state:
                        for i in range(tile):
                            bounds[i, 0] = zero
                            bounds[i, 1] = zero
                            for j in range(hidden):
                                bounds[i, 0] = T.min(bounds[i, 0], state[now, i, j])
                                bounds[i, 1] = T.max(bounds[i, 1], state[now, i, j])
                            for j in range(hidden):
                                operand[i, j] = _rounded_to_levels(state[now, i, j], bounds[i, 0], bounds[i, 1])
                    for n in range(blocks):
                        for i in T.unroll(tile):
                            at = T.meta_var(layer.position(d, t, length[i]))
                            for g in T.unroll(projected_gates):
                                for x in T.vectorized(LANES):
                                    gate[i, g, x] = up(projected[at, row(v, i), column(d, n, g, x)])
                            if layer.cell == "GRU" and not reset_first:
                                for x in T.vectorized(LANES):
                                    gate[i, 2, x] = up(bias[d, n * LANES + x])
                        for k in T.serial(hidden, annotations={RECURRENT_ATTRIBUTE: 1}):
                            for i in T.unroll(tile):
                                for g in T.unroll(first_gates):
                                    for x in T.vectorized(LANES):
                                        if layer.quantized_state:
                                            gate[i, g, x] += operand[i, k] * up(weights[d, n, k, g, x])
                                        else:
                                            gate[i, g, x] += state[now, i, k] * up(weights[d, n, k, g, x])
                        for i in T.unroll(tile):
                            at = T.meta_var(layer.position(d, t, length[i]))
                            for x in T.vectorized(LANES):
                                unit = T.meta_var(n * LANES + x)
                                old = T.meta_var(state[now, i, unit])
                                lanes = T.meta_var(
                                    _Lanes(layer, d, i, x, unit, gate, cell, peepholes, old, alive(t, length[i]))
                                )
                                if layer.cell == "RNN":
                                    state[after, i, unit] = lanes.unless_ended(_rnn(lanes), old)
                                elif layer.cell == "LSTM":
                                    state[after, i, unit] = lanes.unless_ended(_lstm(lanes), old)
                                elif reset_first:
                                    update[i, unit] = lanes.activate(0, lanes.gate(0))
                                    reset[i, unit] = lanes.activate(0, lanes.gate(1)) * old
                                else:
                                    state[after, i, unit] = lanes.unless_ended(
                                        _gru(lanes, up(projected[at, row(v, i), column(d, n, 2, x)])), old
                                    )
                    if reset_first:
                        for n in range(blocks):
                            for i in T.unroll(tile):
                                at = T.meta_var(layer.position(d, t, length[i]))
                                for x in T.vectorized(LANES):
                                    gate[i, 0, x] = update[i, n * LANES + x]
                                    gate[i, 2, x] = up(projected[at, row(v, i), column(d, n, 2, x)])
                            for k in T.serial(hidden, annotations={RECURRENT_ATTRIBUTE: 1}):
                                for i in T.unroll(tile):
                                    for x in T.vectorized(LANES):
                                        gate[i, 2, x] += reset[i, k] * up(weights[d, n, k, 2, x])
                            for i in T.unroll(tile):
                                for x in T.vectorized(LANES):
                                    unit = T.meta_var(n * LANES + x)
                                    old = T.meta_var(state[now, i, unit])
                                    lanes = T.meta_var(
                                        _Lanes(layer, d, i, x, unit, gate, cell, peepholes, old, alive(t, length[i]))
                                    )
                                    state[after, i, unit] = lanes.unless_ended(_gru_output(lanes), old)
                    for i, j in T.grid(tile, hidden):
                        at = T.meta_var(layer.position(d, t, length[i]))
                        states[at, d, row(v, i), j] = down(unless_ended(t, length[i], state[after, i, j]))
                # A sequence of no steps ends in zeros, whatever it began with; that is what onnxruntime does.
                for i, j in T.grid(tile, hidden):
                    last_hidden[d, row(v, i), j] = down(unless_ended(0, length[i], state[steps % 2, i, j]))
                    last_cell[d, row(v, i), j] = down(unless_ended(0, length[i], cell[i, j]))

    limits = [[_LENGTHS, 0, steps if isinstance(steps, int) else _LONGEST]] if layer.ragged else []
    operations = directions * gates * width * (2 * hidden + FUNCTION_OPERATIONS)
    kernel = recurrence.with_attr(STEP_OPERATIONS, operations * WAITING)
    return kernel.with_attr(OPERAND_LIMITS, limits) if limits else kernel
