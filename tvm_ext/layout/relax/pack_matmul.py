"""Turn matrix products into kernels over a packed right operand.

before: ``y = matmul(permute_dims(q), permute_dims(k)); z = matmul(a, w)`` with a constant ``w``
after:  ``y = packed(q, k); z = packed(a, w')``; ``packed`` reads q and k through the transposes, ``w'`` is packed here

A constant right operand is packed here; a computed one is packed by the kernel. Transposes of the operands, and one of
the result that leaves the last axis in place, become part of the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.graph.decisions import Decision, with_decisions
from tvm_ext.graph.origins import all_origins, emit_from, span_of, words_between
from tvm_ext.layout.choices import Choices
from tvm_ext.layout.product_plan import ProductPlan, choose_product
from tvm_ext.layout.relax.offers import with_offers
from tvm_ext.layout.strassen_plan import StrassenPlan, plan_strassen
from tvm_ext.layout.verify import verify_product, verify_strassen
from tvm_ext.passes.attention import Attention, find_attention
from tvm_ext.passes.bindings import Bindings, Operand, calls, permutation
from tvm_ext.passes.operand_views import operand_view
from tvm_ext.passes.shared_kernels import SharedKernels
from tvm_ext.relax_utils import OPAQUE, OUT_ELEMENTWISE, read_only, rewritten, static_shape
from tvm_ext.schedules.compute.attention import attention
from tvm_ext.schedules.compute.bfloat16 import pairs
from tvm_ext.schedules.compute.matmul import MatmulShape, matmul, pack_columns, uniform_rows
from tvm_ext.schedules.compute.strassen import strassen, strassen_weight
from tvm_ext.schedules.cpu.attention import attention_tile
from tvm_ext.schedules.cpu.machine import Machine, machine_of

DTYPES = ("float32", "float64")
"""Element types of products that are taken; others are left to the default legalization."""


def pack_matmul(
    bfloat16: bool = False, chosen: Mapping[str, str] | None = None, strassen: bool = False
) -> tvm.transform.Pass:
    """Make the pass, for CPU targets; it takes static ``float32`` and ``float64`` products and leaves others alone.

    Parameters
    ----------
    bfloat16 : bool
        Whether ``float32`` products with a constant are computed from operands rounded to bfloat16, which add up in
        float32; the target must have the instruction.
    chosen : mapping from key to option, optional
        What a search found better than the machine model's choices; see :class:`~tvm_ext.layout.choices.Choices`.
    strassen : bool
        Whether products of many rows with a constant may use Strassen's algorithm.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.PackMatmul")
    def _pack_matmul(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        machine, choices = machine_of(), Choices(chosen or {})
        rewriter = PackMatmulMutator(mod, machine, bfloat16, choices, strassen and not bfloat16)
        return with_offers(with_decisions(rewritten(mod, rewriter), rewriter.decisions), choices)

    return _pack_matmul


_MOST_STEPS = 16
"""Before a product, after which a sequence is not looked for."""


def _rows(expr: relax.Expr) -> int | None:
    """Count the rows of a matrix."""
    shape = static_shape(expr) if isinstance(expr.ty, relax.TensorType) else None
    return shape[0] if shape is not None and len(shape) == 2 else None


@mutator
class PackMatmulMutator(PyExprMutator):
    """Rewrites one module, function by function."""

    def __init__(
        self,
        mod: tvm.IRModule,
        machine: Machine,
        bfloat16: bool = False,
        choices: Choices | None = None,
        strassen: bool = False,
    ) -> None:
        super().__init__(mod)
        self.strassen = strassen
        self.machine = machine
        self.bfloat16 = bfloat16
        self.choices = Choices() if choices is None else choices
        self.bindings = Bindings()
        self.transposed: set[relax.Var] = set()
        self.packed: dict[tuple[Any, ...], relax.Expr] = {}
        self.kernels = SharedKernels()
        self.decisions: list[Decision] = []
        self.words: dict[Any, tuple[str, ...]] = {}  # for the nodes that variables come from

    def begin(self, function: relax.Function) -> bool:
        """Look at a function before it is rewritten, and say whether there is anything to rewrite."""
        self.bindings = Bindings()
        self.bindings.visit_expr(function)
        self.words = all_origins(function)
        self.transposed = set()
        for var, value in self.bindings.values.items():
            product = self._transposed_product(var, value)
            if product is not None:
                self.transposed.add(product)
        return any(self._operands(var, value) is not None for var, value in self.bindings.values.items())

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Replace a product, or the transpose of one; leave out a product that is only transposed."""
        if binding.var in self.transposed:
            return
        product = self._transposed_product(binding.var, binding.value)
        if product is not None:
            call, out_axes = self.bindings.values[product], permutation(binding.value)
        else:
            call, out_axes = binding.value, None
        operands = self._operands(binding.var, call)
        if operands is None:
            super().visit_var_binding_(binding)
            return
        found = find_attention(self.bindings, call, lambda expr: self.bindings.is_visible(expr, binding.var), True)
        new_call = None if found is None else self._attention(binding.var, found, operands[1], out_axes)
        read = [part.expr for part in operands]
        if new_call is None:
            new_call = self._seven_products(binding.var, *operands, out_axes)
        if new_call is None:
            new_call = self._kernel(binding.var, *operands, out_axes)
        elif found is not None:
            scored = (self._operand(binding.var, arg) for arg in found.scores.args)
            read = [read[1], *found.others, *(part.expr for part in scored if part is not None)]
        span = span_of(words_between(binding.var, read, self.bindings.values))
        leaves = self.builder_.current_block_is_dataflow() and not isinstance(binding.var, relax.DataflowVar)
        self.set_var_remap(binding.var, emit_from(self.builder_, new_call, span, leaves=leaves))

    def _transposed_product(self, var: relax.Var, value: relax.Expr) -> relax.Var | None:
        """Find the product that ``value`` transposes, when nothing else uses it and its last axis stays in place."""
        axes = permutation(value)
        if axes is None or axes[-1] != len(axes) - 1:
            return None
        source = value.args[0]
        if (
            not isinstance(source, relax.Var)
            or self.bindings.uses[source] != 1
            or self.bindings.blocks.get(source) != self.bindings.blocks.get(var)
            or source not in self.bindings.values
            or self._operands(source, self.bindings.values[source]) is None
        ):
            return None
        return source

    def _operands(self, var: relax.Var, value: relax.Expr) -> tuple[Operand, Operand] | None:
        """Take a product apart, if it is one that can be packed."""
        if not calls(value, "relax.matmul"):
            return None
        data, weight = (self._operand(var, arg) for arg in value.args)
        if data is None or weight is None or len({str(expr.ty.dtype) for expr in (value, *value.args)}) > 1:
            return None
        return data, weight

    def _operand(self, user: relax.Var, expr: relax.Expr) -> Operand | None:
        """Look through the transposes before an operand."""
        shape = static_shape(expr)
        if shape is None or len(shape) < 2 or 0 in shape or str(expr.ty.dtype) not in DTYPES:
            return None
        return self.bindings.operand(user, expr, shape, self.transposed)

    def _kernel(self, var: relax.Var, data: Operand, weight: Operand, out_axes: tuple[int, ...] | None) -> relax.Call:
        shape = MatmulShape(data.shape, weight.shape)
        dtype = str(data.expr.ty.dtype)
        constant = isinstance(weight.expr, tvm.ir.GenericConst)
        plan = choose_product(self.choices, shape, data.axes, dtype, self.machine, self.bfloat16 and constant)
        verify_product(plan, shape)
        self.decisions.append(Decision.of("matmul", "product", plan, self.words.get(var, ())))
        return self._shared(
            matmul,
            "matmul",
            [self.visit_expr(data.expr), self._pack(weight, plan) if constant else self.visit_expr(weight.expr)],
            OUT_ELEMENTWISE,
            data_shape=data.shape,
            weight_shape=weight.shape,
            data_axes=data.axes,
            weight_axes=() if constant else weight.axes,
            out_axes=out_axes or tuple(range(len(shape.out))),
            tile=plan.tile,
            lanes=plan.lanes,
            copy_rows=plan.copy_rows,
        )

    def _shared(
        self, compute: Any, name: str, operands: list[Any], pattern: int, others: Sequence[Any] = (), **attributes: Any
    ) -> Any:
        """Call a kernel, which is made once for all calls that are alike; ``others`` are its last operand, a list."""

        def make() -> relax.Call:
            return self.builder_.call_te(
                compute,
                *operands,
                *([list(others)] if compute is attention else []),
                **attributes,
                primfunc_name_hint=name,
                primfunc_attrs={"op_pattern": pattern},
            )

        # As text, in which a zero has its sign.
        return self.kernels.call((name, repr(attributes)), [*operands, *others], make)

    def _seven_products(
        self, var: relax.Var, data: Operand, weight: Operand, out_axes: tuple[int, ...] | None
    ) -> relax.Call | None:
        """Make a product by Strassen's algorithm, where that pays."""
        shape = MatmulShape(data.shape, weight.shape)
        if not self.strassen or not isinstance(weight.expr, tvm.ir.GenericConst):
            return None
        plan = plan_strassen(shape, self._sequence(data), str(data.expr.ty.dtype), self.machine)
        if plan is None:
            return None
        verify_strassen(plan, shape)
        self.decisions.append(Decision.of("matmul", "strassen", plan, self.words.get(var, ())))
        return self._shared(
            strassen,
            "strassen",
            [self.visit_expr(data.expr), self._quarters(weight, plan)],
            OUT_ELEMENTWISE,
            data_shape=data.shape,
            weight_shape=weight.shape,
            data_axes=data.axes,
            out_axes=out_axes or tuple(range(len(shape.out))),
            sequence=plan.sequence,
            tile=plan.tile,
            lanes=plan.lanes,
        )

    def _sequence(self, data: Operand) -> int:
        """Count the rows that belong together, as tokens of a text do; those of a matrix may be samples of a batch."""
        if len(data.shape) > 2:
            return data.shape[-2]
        return self._length(data.expr) if data.axes == (0, 1) else 1

    def _length(self, matrix: relax.Expr) -> int:
        """Give the length of the sequences whose tokens are the rows of a matrix, computed row by row; 1 if unknown."""
        waiting, seen = [matrix], {matrix}
        while waiting and len(seen) < _MOST_STEPS:
            expr = waiting.pop()
            value: Any = self.bindings.values.get(expr) if isinstance(expr, relax.Var) else None
            if calls(value, "relax.reshape"):
                before = static_shape(value.args[0])
                if before is not None and len(before) > 2 and before[-1] == expr.ty.shape[-1]:
                    return before[-2]
            elif isinstance(value, relax.Call) and not calls(value, "relax.permute_dims"):
                alike = [arg for arg in value.args if _rows(arg) == _rows(matrix) and arg not in seen]
                waiting += alike
                seen.update(alike)
        return 1

    def _quarters(self, weight: Operand, plan: StrassenPlan) -> relax.Expr:
        """Add up the quarters of a constant; of one that several products use in the same way once."""
        key = (weight.expr.value, weight.axes, plan.tile, plan.lanes)
        if key not in self.packed:
            matrix = read_only(weight.expr.value).transpose(weight.axes).reshape(weight.shape[-2:])
            made: list[tvm.runtime.Tensor] = []

            def empty(shape: Sequence[int], dtype: Any) -> np.ndarray:
                """Give the memory of a tensor, so that what is written there need not be copied."""
                made.append(tvm.runtime.empty(shape, str(dtype)))
                return np.from_dlpack(made[-1])

            strassen_weight(matrix, plan.tile[1], plan.lanes, empty)
            self.packed[key] = relax.const(made[0])
        return self.packed[key]

    def _attention(
        self, var: relax.Var, found: Attention, value: Operand, out_axes: tuple[int, ...] | None
    ) -> relax.Call | None:
        """Make one kernel of an attention that ends with a product bound to ``var``."""
        query, key = (self._operand(var, arg) for arg in found.scores.args)
        if query is None or key is None or any(isinstance(part.expr, tvm.ir.GenericConst) for part in (key, value)):
            return None
        scores = MatmulShape(query.shape, key.shape)
        values = MatmulShape(scores.out, value.shape)
        if (scores.batch_axes, scores.out[:-1]) != (values.batch_axes, values.out[:-1]):
            return None
        lanes = self.machine.lanes(str(query.expr.ty.dtype))
        is_single = str(query.expr.ty.dtype) == "float32"
        rounds = self.bfloat16 and is_single and scores.columns > 1 and values.columns > 1
        tile = attention_tile(scores, values, lanes, self.machine, rounds)
        if tile is None:
            return None
        self.decisions.append(Decision.of("matmul", "attention", tile, self.words.get(var, ())))
        parts = query, key, value
        sources, views = zip(*(operand_view(self.bindings, var, part.expr) for part in parts), strict=True)
        return self._shared(
            attention,
            "attention",
            [self.visit_expr(source) for source in sources],
            OPAQUE,
            [self.visit_expr(other) for other in found.others],
            shapes=(query.shape, key.shape, value.shape),
            axes=(query.axes, key.axes, value.axes),
            steps=found.steps,
            out_axes=out_axes or tuple(range(len(values.out))),
            tile=(tile.rows, tile.score_vectors, tile.value_vectors),
            lanes=lanes,
            # Rows of a view may lie anywhere.
            copy_rows=scores.rows % tile.rows != 0 or not uniform_rows(scores, query.axes) or bool(views[0]),
            rounds=rounds,
            zeros=found.zeros,
            views=views,
            viewed_shapes=tuple(static_shape(part.expr) for part in parts),
        )

    def _pack(self, weight: Operand, plan: ProductPlan) -> relax.Expr:
        """Pack a constant; one that several products use in the same way is packed once."""
        array = read_only(weight.expr.value)
        key = (weight.expr.value, weight.axes, plan.lanes, plan.chunks)
        if key not in self.packed:
            # Without its type, a constant of doubles is rounded to single precision.
            columns = pack_columns(array.transpose(weight.axes), plan.lanes, plan.chunks)
            self.packed[key] = (
                relax.const(pairs(columns, -2)) if plan.rounds else relax.const(columns, str(array.dtype))
            )
        return self.packed[key]
