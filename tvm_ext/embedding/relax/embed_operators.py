"""Makes kernels around a target's instructions of operators that multiply and add, where that should be faster.

before: ``y = conv3d_transpose(x, w)`` with a constant ``w``
after:  ``y = conv3d_transpose_embedded(x, w')``, a kernel that :mod:`tvm_ext.embedding.kernel` writes; ``w'`` is stored
        when compiling as the instruction reads it

The operator is read from the kernel that it would be without; what that does before and after stays as it is.

Neighbours agree on the order of dimensions of the tensors between them (:mod:`tvm_ext.embedding.neighbours`): with
channels last, where the lanes of instructions are together, or as the model has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.embedding.choice import Offer
from tvm_ext.embedding.dataflow import Dataflow
from tvm_ext.embedding.neighbours import AS_IT_IS, CHANNELS_LAST
from tvm_ext.embedding.relax.agreement import Agreement, Relayout, Way, agreement
from tvm_ext.embedding.relax.operator_kernel import (
    Candidate,
    Kernel,
    Store,
    candidate,
    legalized,
    operands_of,
    write_kernel,
)
from tvm_ext.embedding.relax.orders import channels_last, channels_second, constant_last, in_last, kernel_in_order
from tvm_ext.errors import EmbeddingError
from tvm_ext.graph.decisions import Decision, with_decisions
from tvm_ext.graph.origins import OriginBuilder, words_of
from tvm_ext.relax_utils import constant, static_shape

OPERATORS = frozenset(
    f"relax.{name}"
    for name in (
        "nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose",
        "matmul", "einsum",
    )
)  # fmt: skip
"""Operators that multiply and add."""

OrdinaryCost = Callable[[Dataflow], float]
"""Cycles that an operator takes without an embedding, at least."""

MARGIN = 1.15
"""How many times as fast as without an embedding a kernel must be expected to be: neither cost is known better."""

NOTES_ATTRIBUTE = "tvm_ext.embedded"
"""Attribute of a module: a line for each kind of operator that was looked at, what was chosen or why nothing was."""


def embed_operators(
    offers: Sequence[Offer],
    ordinary: OrdinaryCost | None = None,
    relayout: Relayout | None = None,
    margin: float = MARGIN,
) -> tvm.transform.Pass:
    """Make the pass.

    Parameters
    ----------
    offers : sequence of Offer
        Instructions of the target.
    ordinary : callable, optional
        Operators that should not be faster than this stay as they are; without, all that have an embedding change.
    relayout : callable, optional
        What copying a tensor into another order takes; without, all tensors stay in the order that they have.
    margin : float
        How many times as fast as without an embedding a kernel must be expected to be.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.EmbedOperators")
    def _embed_operators(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        rewriter = _Rewriter(mod, offers, ordinary, relayout, margin)
        for global_var, function in mod.functions.items():
            if isinstance(function, relax.Function) and not (
                function.attrs and ("Primitive" in function.attrs or "Codegen" in function.attrs)
            ):
                rewriter.builder_.update_func(global_var, rewriter.rewrite(function))
        if not rewriter.notes:
            return mod
        earlier = str(mod.attrs[NOTES_ATTRIBUTE]).splitlines() if mod.attrs and NOTES_ATTRIBUTE in mod.attrs else []
        embedded = with_decisions(rewriter.builder_.finalize(), rewriter.decisions)
        return embedded.with_attr(NOTES_ATTRIBUTE, "\n".join(dict.fromkeys([*earlier, *rewriter.notes])))

    return _embed_operators


def has_solver() -> bool:
    """Whether the packages are installed that searching embeddings needs."""
    return all(find_spec(name) is not None for name in ("constraint", "islpy"))


@dataclass(frozen=True)
class _Place:
    """Where an instruction stands in an operator, as it is listed among the decisions of a compilation."""

    instruction: str
    embedding: str
    cycles: int


@mutator
class _Rewriter(PyExprMutator):
    """Rewrites one module; operators that are alike share what was found."""

    def __init__(
        self,
        mod: tvm.IRModule,
        offers: Sequence[Offer],
        ordinary: OrdinaryCost | None,
        relayout: Relayout | None,
        margin: float,
    ) -> None:
        super().__init__(mod)
        self.builder_ = OriginBuilder(mod)
        self.offers = offers
        self.ordinary = ordinary
        self.relayout = relayout
        self.margin = margin
        self.notes: list[str] = []
        self.decisions: list[Decision] = []
        self.known: dict[Any, Candidate | None] = {}
        self.kernels: dict[int, tuple[Kernel, Any]] = {}
        self.packed: dict[Any, Any] = {}
        self.agreed = Agreement({}, frozenset())
        self.last: dict[Any, Any] = {}
        """Variable to its value with channels last."""
        self.only_last: set[Any] = set()
        """Variables that there is no other value of yet."""

    def rewrite(self, function: relax.Function) -> relax.Function:
        """Choose for all operators of a function, and write it anew."""
        usual = self.ordinary
        self.agreed = agreement(
            function, OPERATORS, self._candidate, self.relayout,
            None if usual is None else lambda found: usual(found.operator), self.margin,
        )  # fmt: skip
        self.last, self.only_last = {}, set()
        return self.visit_expr(function)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Replace an operator that is embedded, and write what is between two of them in their order."""
        way = self.agreed.ways.get(binding.var)
        if way is None or (way.candidate is None and way.takes == AS_IT_IS):
            if way is not None and isinstance(binding.value, relax.Call):
                self._note_ordinary(binding.value)
                for operand in relax.analysis.free_vars(binding.value):
                    self._in_order(operand, AS_IT_IS)
            super().visit_var_binding_(binding)
            return
        with self.builder_.coming_from(binding.var.span):
            if way.candidate is None:
                made = self._elementwise(binding.value)
            else:
                made = self._embedded(binding.value, way, words_of(binding.var))
            leaves = self.builder_.current_block_is_dataflow() and not isinstance(binding.var, relax.DataflowVar)
            if way.gives != AS_IT_IS:
                self.last[binding.var] = self.builder_.emit(made)
                if binding.var not in self.agreed.leaving:
                    self.only_last.add(binding.var)
                    return
                made = self._channels_second(binding.var)
            self.set_var_remap(binding.var, self.builder_.emit_output(made) if leaves else self.builder_.emit(made))

    def _in_order(self, operand: Any, order: str) -> relax.Expr:
        """Give an operand in an order; copied once where it is in another one."""
        if order == AS_IT_IS:
            if operand in self.only_last:
                self.only_last.remove(operand)
                self.set_var_remap(operand, self.builder_.emit(self._channels_second(operand)))
            return self.visit_expr(operand)
        if operand not in self.last:
            rank = len(static_shape(operand) or ())
            copied = relax.op.permute_dims(self.visit_expr(operand), channels_last(rank))
            self.last[operand] = self.builder_.emit(copied)
        return self.last[operand]

    def _channels_second(self, variable: Any) -> relax.Expr:
        """Put the channels of a value back where the model has them."""
        return relax.op.permute_dims(self.last[variable], channels_second(len(static_shape(variable) or ())))

    def _elementwise(self, call: relax.Call) -> relax.Call:
        """Write an element-wise operator with channels last."""
        arguments = []
        for argument in call.args:
            values = constant(argument)
            if values is not None:
                arguments.append(constant_last(values, len(static_shape(call) or ())))
            elif isinstance(argument, tvm.ir.Var):
                arguments.append(self._in_order(argument, CHANNELS_LAST))
            else:
                arguments.append(argument)
        return relax.Call(call.op, arguments, call.attrs, call.ty_args)

    def _embedded(self, call: relax.Call, way: Way, words: Sequence[str]) -> relax.Call:
        name, operands, found = _name(call), operands_of(call), way.candidate
        assert found is not None
        if id(found) not in self.kernels:
            variants = "" if (way.takes, way.gives) == (AS_IT_IS, AS_IT_IS) else f", from {way.takes} to {way.gives}"
            self.notes.append(f"{_label(call)}: {found.text}{variants}")
            kernel = write_kernel(found)
            hint = f"{name.rpartition('.')[2]}_embedded"
            self.kernels[id(found)] = kernel, self.builder_.add_func(kernel.func, hint)
        kernel, variable = self.kernels[id(found)]
        plan = found.choice.plan
        place = _Place(found.choice.instruction.name, str(plan.strategy.embedding), round(plan.cycles))
        self.decisions.append(Decision.of(name, "embedded", place, words))
        arguments = [
            self._in_order(operands[number], way.takes if number == 0 else AS_IT_IS) for number in kernel.operands
        ]
        arguments += [self._stored(numbers, store, operands) for numbers, store in kernel.stored]
        shape = static_shape(call) or ()
        result = call.ty if way.gives == AS_IT_IS else relax.TensorType(in_last(shape), call.ty.dtype)
        return relax.call_tir(variable, arguments, result)

    def _stored(self, numbers: tuple[int, ...], store: Store, operands: Sequence[Any]) -> relax.Expr:
        """Store a constant factor; one that several operators use in the same way is stored once."""
        key = (store, *(operands[number].value for number in numbers))
        if key not in self.packed:
            values = [constant(operands[number]) for number in numbers]
            self.packed[key] = relax.const(store([value for value in values if value is not None]))
        return self.packed[key]

    def _candidate(self, call: relax.Call, takes: str, gives: str) -> Candidate | None:
        """Find the embedding of an operator; the same for all that are alike."""
        operands = operands_of(call)
        shapes = [static_shape(operand) for operand in (*operands, call)]
        if any(shape is None or 0 in shape for shape in shapes):
            self.notes.append(f"{_name(call)}: an extent of it is not known, or is 0")
            return None
        is_constant = tuple(constant(operand) is not None for operand in operands)
        key = (*_kind(call, operands), is_constant, takes, gives)
        if key not in self.known:
            try:
                func = legalized(call, operands)
                if (takes, gives) != (AS_IT_IS, AS_IT_IS):
                    func = kernel_in_order(func, takes, gives)
                self.known[key] = candidate(func, self.offers, is_constant)
            except EmbeddingError as error:
                if (takes, gives) == (AS_IT_IS, AS_IT_IS):
                    self.notes.append(f"{_label(call)}: not embedded: {error}")
                self.known[key] = None
        return self.known[key]

    def _note_ordinary(self, call: relax.Call) -> None:
        """Say what an operator takes that would have an embedding, and is not embedded."""
        if getattr(call.op, "name", "") not in OPERATORS:
            return
        found = self._candidate(call, AS_IT_IS, AS_IT_IS)
        if found is not None and self.ordinary is not None:
            usual = self.ordinary(found.operator)
            said = f"{_label(call)}: not embedded: {found.text}, and {usual:.0f} without"
            if said not in self.notes:
                self.notes.append(said)


def _name(call: relax.Call) -> str:
    return str(call.op.name).removeprefix("relax.")


def _label(call: relax.Call) -> str:
    types = [f"{operand.ty.dtype}{list(static_shape(operand) or ())}" for operand in operands_of(call)]
    return f"{_name(call)} of {' and '.join(types)}"


def _kind(call: relax.Call, operands: Sequence[Any]) -> tuple[Any, ...]:
    """Say what operators have in common that are computed alike."""
    attributes = None if call.attrs is None else tvm_ffi.StructuralKey(call.attrs)
    return _name(call), attributes, tuple(tvm_ffi.StructuralKey(operand.ty) for operand in operands)
