"""Tensors in the blocked layout NCHW{v}c, and the mutator that rules of operators work with.

A value is blocked where it is made by an operator that gains from it (a convolution) and stays so through operators
that do not care (:mod:`tvm_ext.layout.relax.rules`); any other use gets a plain copy, made once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.graph.decisions import Decision
from tvm_ext.graph.origins import OriginBuilder
from tvm_ext.layout.choices import Choices
from tvm_ext.layout.lanes import ANYTHING, ZERO, Lanes
from tvm_ext.passes.shared_kernels import SharedKernels
from tvm_ext.relax_utils import ELEMENTWISE, INJECTIVE, OPAQUE, OUT_ELEMENTWISE, open_shape
from tvm_ext.schedules.compute.bfloat16 import rounded_tensor
from tvm_ext.schedules.compute.layout import fill_lanes, from_blocked, full, to_blocked, turn
from tvm_ext.schedules.cpu.machine import Machine


@dataclass(frozen=True)
class Blocked:
    """A tensor in blocked layout.

    Attributes
    ----------
    var : relax.Var
        Shape ``(N, ceil(C / v), [D,] H, W, v)``.
    channels : int
        ``C``.
    rank : int
        Dimensions of the plain tensor: 3 (``N, C, W``; blocked with ``H = 1``), 4 or 5.
    lanes : Lanes
        Bounds of what the lanes beyond ``C`` hold: so small that a convolution may multiply them with weights of zero.
        Whoever emits a tensor states them (:meth:`BlockedLayoutMutator.describe`).
    turned : bool
        Whether rows and columns are exchanged in ``var``, of shape ``(N, ceil(C / v), [D,] W, H, v)``: kernels work
        along the last axis of an image, which should not be one pixel wide (:func:`is_better_turned`).
    """

    var: relax.Expr
    channels: int
    rank: int
    lanes: Lanes
    turned: bool = False

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shape of ``var``; extents that are only known at run time are expressions."""
        shape = open_shape(self.var)
        assert shape is not None
        return shape

    @property
    def stored(self) -> tuple[Any, ...]:
        """The spatial extents of ``var``."""
        return self.shape[2:-1]

    @property
    def spatial(self) -> tuple[Any, ...]:
        """The spatial extents of the plain tensor; ``1, W`` where it has one axis."""
        return tuple(turn(self.stored, self.turned))

    @property
    def block(self) -> int:
        """Channels in a block."""
        return int(self.shape[-1])

    @property
    def is_open(self) -> bool:
        """Whether an extent is only known at run time."""
        return not all(isinstance(extent, int) for extent in self.shape)

    @property
    def full(self) -> bool:
        """Whether the last block is full."""
        return full(self.channels, self.block)


def turn_geometry(geometry: dict[str, list[int]], turned: bool) -> dict[str, list[int]]:
    """Exchange rows and columns, if ``turned``, in lists of one number an axis or (padding) before and after each."""
    axes = len(geometry["strides"])
    return {
        name: turn(items[:axes], turned) + (turn(items[axes:], turned) if len(items) > axes else [])
        for name, items in geometry.items()
    }


def is_better_turned(shape: Sequence[int], known: Blocked | None) -> bool:
    """Whether a convolution should see the image of its input, of plain ``shape``, with rows and columns exchanged.

    Kernels compute several columns at once. With 64 channels, images one pixel wide take 1.5 to 3 times as long as when
    they are turned, two pixels 1.2 to 1.8 times, three up to 1.4 times, four hardly longer. What is in the blocked
    layout already is only turned where that moves nothing.
    """
    if len(shape) < 4:
        return False
    height, width = shape[-2:]
    if known is not None and (known.turned or 1 not in (height, width)):
        return known.turned
    return width <= 3 and height >= 4 * width


Rule = Callable[["BlockedLayoutMutator", relax.Call], Blocked | None]
Take = Callable[["BlockedLayoutMutator", relax.Expr], Blocked | tuple[Blocked, ...] | None]
"""Rewrites a bound expression to the blocked layout, or declines it; see :func:`tvm_ext.layout.relax.rules.take`."""

TakeRow = Callable[["BlockedLayoutMutator", relax.VarBinding], relax.Expr | None]
"""Rewrites images that are made rows; see :func:`tvm_ext.layout.relax.flattened.take_flattened`."""


def _is_pixel(stored: Sequence[Any]) -> bool:
    return all(isinstance(extent, int) and extent == 1 for extent in stored[-2:])


@mutator
class BlockedLayoutMutator(PyExprMutator):
    """Rewrites one module; rules ask it for operands and let it emit kernels."""

    def __init__(
        self,
        mod: tvm.IRModule,
        machine: Machine,
        take: Take,
        winograd: bool = True,
        bfloat16: bool = False,
        choices: Choices | None = None,
        take_row: TakeRow = lambda _rewriter, _binding: None,
        chains: bool = True,
    ) -> None:
        super().__init__(mod)
        self.builder_ = OriginBuilder(mod)
        self.machine = machine
        self.take = take
        self.take_row = take_row
        self.chains = chains  # whether chains of operators may become one kernel
        self.winograd = winograd
        self.bfloat16 = bfloat16
        self.has_open_extents = False  # of the function that is rewritten
        self.choices = Choices() if choices is None else choices
        self.kernels = SharedKernels()
        self.decisions: list[Decision] = []
        self.words: dict[Any, tuple[str, ...]] = {}  # for the nodes that variables come from
        self._current: relax.Var | None = None
        self.wanted: dict[relax.Var, int] = {}  # blocks that were selected for a whole function
        self.blocked: dict[relax.Var, Blocked | tuple[Blocked, ...]] = {}
        self.plain_copies: dict[relax.Var, relax.Var] = {}
        self.rounded_copies: dict[relax.Expr, relax.Expr] = {}
        self.definitions: dict[relax.Var, relax.Expr] = {}
        self.uses: Counter[relax.Var] = Counter()  # how often each variable of the function is read
        self.images: set[relax.Var] = set()  # that are made rows for dense layers, of the function that is rewritten
        self.rows: dict[relax.Expr, Blocked] = {}  # images that were, in the order of their blocks

    @property
    def wanted_block(self) -> int:
        """The block that was selected for the result that is being rewritten; 0: none."""
        return 0 if self._current is None else self.wanted.get(self._current, 0)

    def known(self, expr: relax.Expr) -> Blocked | None:
        """Look up the blocked form of an operand."""
        value = self.blocked.get(expr) if isinstance(expr, relax.Var) else None
        return value if isinstance(value, Blocked) else None

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        """Forget what belongs to another block, where its inner variables cannot be seen."""
        self.blocked, self.plain_copies, self.rounded_copies, self.definitions, self.rows = {}, {}, {}, {}, {}
        return super().visit_dataflow_block_(block)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Let a rule take the binding; otherwise keep it, with plain operands."""
        self.definitions[binding.var] = binding.value
        self._current = binding.var
        with self.builder_.coming_from(binding.var.span):
            self._rewrite(binding)

    def _rewrite(self, binding: relax.VarBinding) -> None:
        row = self.take_row(self, binding)
        if row is not None:
            leaves = self.builder_.current_block_is_dataflow() and not isinstance(binding.var, relax.DataflowVar)
            self.set_var_remap(binding.var, self.builder_.emit_output(row) if leaves else self.builder_.emit(row))
            return
        result = self.take(self, binding.value)
        if result is None:
            super().visit_var_binding_(binding)
            return
        self.blocked[binding.var] = result
        if not isinstance(binding.var, relax.DataflowVar) and isinstance(result, Blocked):
            plain = self.to_plain(result)
            if self.builder_.current_block_is_dataflow():
                plain = self.builder_.emit_output(plain)
            self.set_var_remap(binding.var, plain)

    def visit_var_(self, op: relax.Var) -> relax.Expr:
        """Replace a use of a blocked value by its plain copy."""
        plain = self._use(op)
        return super().visit_var_(op) if plain is None else plain

    def visit_dataflow_var_(self, op: relax.DataflowVar) -> relax.Expr:
        """Replace a use of a blocked value by its plain copy."""
        plain = self._use(op)
        return super().visit_dataflow_var_(op) if plain is None else plain

    def _use(self, var: relax.Var) -> relax.Expr | None:
        value = self.blocked.get(var)
        if value is None or not isinstance(var, relax.DataflowVar):
            return None
        if var not in self.plain_copies:
            if isinstance(value, tuple):
                self.plain_copies[var] = self.builder_.emit(relax.Tuple([self.to_plain(item) for item in value]))
            else:
                self.plain_copies[var] = self.to_plain(value)
        return self.plain_copies[var]

    def to_plain(self, value: Blocked) -> relax.Var:
        """Emit the conversion of a blocked value to the plain layout."""
        plain = self.emit_kernel(
            from_blocked, [value.var], "from_blocked", INJECTIVE, channels=value.channels, turned=value.turned
        )
        if value.rank == 3:
            batch, channels, _, width = plain.ty.shape
            plain = self.builder_.emit(relax.op.reshape(plain, (batch, channels, width)))
        return plain

    def to_block(self, expr: relax.Expr, block: int, turned: bool = False) -> Blocked:
        """Give an operand (as it stands in the old function) in blocks of ``block`` channels; 1: a plane a channel."""
        value = self.blocked.get(expr) if isinstance(expr, relax.Var) else None
        if isinstance(value, Blocked) and value.block == block:
            if value.turned == turned or _is_pixel(value.stored):
                return replace(value, turned=turned)
            if any(isinstance(extent, int) and extent == 1 for extent in value.stored[-2:]):
                return replace(value, var=self.turn_image(value.var, -3), turned=turned)
        plain = self.visit_expr(expr)
        batch, channels, *spatial = open_shape(plain) or ()
        rank = len(spatial) + 2
        if rank == 3:
            spatial = [1, *spatial]
        if block == 1:
            plane = self.turn_image(plain, -2) if turned else plain
            plane = self.builder_.emit(relax.op.reshape(plane, (batch, channels, *turn(spatial, turned), 1)))
            return Blocked(plane, channels, rank, ZERO, turned)
        if rank == 3:
            plain = self.builder_.emit(relax.op.reshape(plain, (batch, channels, *spatial)))
        var = self.emit_kernel(to_blocked, [plain], "to_blocked", INJECTIVE, block=block, turned=turned)
        return Blocked(var, channels, rank, ZERO, turned)

    def turn_image(self, var: relax.Expr, first: int) -> relax.Var:
        """Exchange axis ``first`` (counted from the end) with the one behind it; that moves nothing if one is 1."""
        extents = [int(extent) for extent in var.ty.shape]
        axes = list(range(len(extents)))
        first += len(extents)
        axes[first : first + 2] = [first + 1, first]
        if 1 in extents[first : first + 2]:
            return self.builder_.emit(relax.op.reshape(var, [extents[axis] for axis in axes]))
        return self.builder_.emit(relax.op.permute_dims(var, axes))

    def pattern(self, stored: Sequence[Any]) -> int:
        """Say what FuseOps may fuse to a kernel whose result is a map of these extents.

        It takes in what spreads a pixel over a map, as squeeze and excitation do, and where the map's extents are open
        no rule takes such a kernel.
        """
        return OPAQUE if self.has_open_extents and _is_pixel(stored) else OUT_ELEMENTWISE

    def note(self, operator: str, form: str, plan: Any) -> None:
        """Note how an operator of the binding that is being rewritten is computed."""
        self.decisions.append(Decision.of(operator, form, plan, self.words.get(self._current, ())))

    def rounded(self, var: relax.Expr) -> relax.Expr:
        """Emit a tensor as bfloat16, once; where nothing else reads it, it becomes part of the kernel that makes it."""
        if var not in self.rounded_copies:
            self.rounded_copies[var] = self.emit_kernel(rounded_tensor, [var], "round", ELEMENTWISE)
        return self.rounded_copies[var]

    def describe(self, var: relax.Expr, like: Blocked, lanes: Lanes | None, channels: int = 0) -> Blocked:
        """Describe a tensor that was emitted, in the layout of another one; ``channels``, if it has not as many.

        Its unused lanes are set to zero if they may hold anything.
        """
        channels = channels or like.channels
        if full(channels, int(var.ty.shape[-1])):
            return replace(like, var=var, channels=channels, lanes=ZERO)
        if lanes is ANYTHING:
            var, lanes = self.fill_lanes(var, channels, 0.0), ZERO
        return replace(like, var=var, channels=channels, lanes=lanes)

    def fill_lanes(self, var: relax.Expr, channels: int, value: float) -> relax.Var:
        """Emit a copy (which is fused) of a blocked tensor whose unused lanes hold ``value``, whatever they held."""
        return self.emit_kernel(fill_lanes, [var], "fill_lanes", ELEMENTWISE, channels=channels, value=value)

    def kernel(
        self, compute: Callable[..., Any], args: list[relax.Expr], name: str, pattern: int, **attributes: Any
    ) -> relax.Call:
        """Call a tensor expression on Relax arguments; ``pattern`` tells FuseOps what may be fused to it."""

        def make() -> relax.Call:
            return self.builder_.call_te(
                compute, *args, **attributes, primfunc_name_hint=name, primfunc_attrs={"op_pattern": pattern}
            )

        return self.kernels.call((compute, name, pattern, attributes), args, make)

    def emit_kernel(
        self, compute: Callable[..., Any], args: list[relax.Expr], name: str, pattern: int, **attributes: Any
    ) -> relax.Var:
        """Emit what :meth:`kernel` makes."""
        return self.builder_.emit(self.kernel(compute, args, name, pattern, **attributes))
