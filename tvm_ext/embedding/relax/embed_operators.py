"""Makes kernels around a target's instructions of operators that multiply and add, where that should be faster.

before: ``y = conv3d_transpose(x, w)`` with a constant ``w``
after:  ``y = conv3d_transpose_embedded(x, w')``, a kernel that :mod:`tvm_ext.embedding.kernel` writes; ``w'`` is stored
        when compiling as the instruction reads it

The operator is read from the kernel that it would be without; what that does before and after stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm import relax, te, tirx
from tvm.ir.prim import expr as prim
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.embedding.choice import KernelChoice, Offer, choose_kernel
from tvm_ext.embedding.dataflow import Dataflow
from tvm_ext.embedding.kernel import Source, factor_shape, kernel_te, placeholder
from tvm_ext.embedding.packing import pack
from tvm_ext.embedding.read import read_products
from tvm_ext.embedding.relax.splice import Stages
from tvm_ext.errors import EmbeddingError
from tvm_ext.graph.decisions import Decision, with_decisions
from tvm_ext.graph.origins import OriginBuilder, words_of
from tvm_ext.relax_utils import OUT_ELEMENTWISE, constant, static_shape

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


def embed_operators(offers: Sequence[Offer], ordinary: OrdinaryCost | None = None) -> tvm.transform.Pass:
    """Make the pass.

    Parameters
    ----------
    offers : sequence of Offer
        Instructions of the target.
    ordinary : callable, optional
        Operators that should not be faster than this stay as they are; without, all that have an embedding change.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.EmbedOperators")
    def _embed_operators(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        rewriter = _Rewriter(mod, offers, ordinary)
        for global_var, function in mod.functions.items():
            if isinstance(function, relax.Function) and not (
                function.attrs and ("Primitive" in function.attrs or "Codegen" in function.attrs)
            ):
                rewriter.builder_.update_func(global_var, rewriter.visit_expr(function))
        if not rewriter.notes:
            return mod
        earlier = str(mod.attrs[NOTES_ATTRIBUTE]).splitlines() if mod.attrs and NOTES_ATTRIBUTE in mod.attrs else []
        embedded = with_decisions(rewriter.builder_.finalize(), rewriter.decisions)
        return embedded.with_attr(NOTES_ATTRIBUTE, "\n".join([*earlier, *rewriter.notes]))

    return _embed_operators


def has_solver() -> bool:
    """Whether the packages are installed that searching embeddings needs."""
    return all(find_spec(name) is not None for name in ("constraint", "islpy"))


Store = Callable[[Sequence[NDArray]], NDArray]
"""Stores a factor for the instruction, from the values of the operator's constant operands."""


@dataclass(frozen=True)
class _Kernel:
    """An embedded kernel: the operator's operands that it takes, and factors that are stored when compiling."""

    func: tirx.PrimFunc
    operands: tuple[int, ...]
    stored: tuple[tuple[tuple[int, ...], Store], ...]


@dataclass(frozen=True)
class _Place:
    """Where an instruction stands in an operator, as it is listed among the decisions of a compilation."""

    instruction: str
    embedding: str
    cycles: int


@mutator
class _Rewriter(PyExprMutator):
    """Rewrites one module; operators that are alike share what was found."""

    def __init__(self, mod: tvm.IRModule, offers: Sequence[Offer], ordinary: OrdinaryCost | None) -> None:
        super().__init__(mod)
        self.builder_ = OriginBuilder(mod)
        self.offers = offers
        self.ordinary = ordinary
        self.notes: list[str] = []
        self.decisions: list[Decision] = []
        self.known: dict[Any, tuple[_Kernel, Any, _Place] | None] = {}
        self.packed: dict[Any, Any] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Replace an operator that has an embedding."""
        call = binding.value
        made = None
        if isinstance(call, relax.Call) and getattr(call.op, "name", "") in OPERATORS:
            with self.builder_.coming_from(binding.var.span):
                made = self._embedded(call, words_of(binding.var))
        if made is None:
            super().visit_var_binding_(binding)
            return
        leaves = self.builder_.current_block_is_dataflow() and not isinstance(binding.var, relax.DataflowVar)
        self.set_var_remap(binding.var, self.builder_.emit_output(made) if leaves else self.builder_.emit(made))

    def _embedded(self, call: relax.Call, words: Sequence[str]) -> relax.Call | None:
        name = str(call.op.name).removeprefix("relax.")
        operands = operands_of(call)
        shapes = [static_shape(operand) for operand in (*operands, call)]
        if any(shape is None or 0 in shape for shape in shapes):
            self.notes.append(f"{name}: an extent of it is not known, or is 0")
            return None
        values = [constant(operand) for operand in operands]
        attributes = None if call.attrs is None else tvm_ffi.StructuralKey(call.attrs)
        types = tuple(tvm_ffi.StructuralKey(operand.ty) for operand in operands)
        key = (name, attributes, types, tuple(value is None for value in values))
        if key not in self.known:
            self.known[key] = self._made(name, call, operands, [value is not None for value in values])
        found = self.known[key]
        if found is None:
            return None
        kernel, variable, place = found
        self.decisions.append(Decision.of(name, "embedded", place, words))
        arguments = [self.visit_expr(operands[number]) for number in kernel.operands]
        arguments += [self._stored(numbers, store, operands) for numbers, store in kernel.stored]
        return relax.call_tir(variable, arguments, call.ty)

    def _stored(self, numbers: tuple[int, ...], store: Store, operands: Sequence[Any]) -> relax.Expr:
        """Store a constant factor; one that several operators use in the same way is stored once."""
        key = (store, *(operands[number].value for number in numbers))
        if key not in self.packed:
            values = [constant(operands[number]) for number in numbers]
            self.packed[key] = relax.const(store([value for value in values if value is not None]))
        return self.packed[key]

    def _made(
        self, name: str, call: relax.Call, operands: Sequence[Any], is_constant: Sequence[bool]
    ) -> tuple[_Kernel, Any, _Place] | None:
        types = [f"{operand.ty.dtype}{list(static_shape(operand) or ())}" for operand in operands]
        label = f"{name} of {' and '.join(types)}"
        try:
            func = legalized(call, operands)
            products = read_products(func)
            if len(products) != 1:
                raise EmbeddingError(f"its kernel has {len(products)} blocks that sum up products; expected one")
            ((block, operator),) = products.items()
            if isinstance(operator, EmbeddingError):
                raise operator
            kernel, choice = _kernel(func, block, operator, self.offers, is_constant)
        except EmbeddingError as error:
            self.notes.append(f"{label}: not embedded: {error}")
            return None
        usual = None if self.ordinary is None else self.ordinary(operator)
        said = f"{choice.instruction.name}, {choice.plan.strategy.embedding}, {choice.plan.cycles:.0f} cycles"
        if usual is not None and choice.plan.cycles * MARGIN >= usual:
            self.notes.append(f"{label}: not embedded: {said}, and {usual:.0f} without")
            return None
        self.notes.append(f"{label}: {said}")
        variable = self.builder_.add_func(kernel.func, f"{name.rpartition('.')[2]}_embedded")
        plan = choice.plan
        return kernel, variable, _Place(choice.instruction.name, str(plan.strategy.embedding), round(plan.cycles))


def operands_of(call: relax.Call) -> list[Any]:
    """List the tensors that an operator is called on, fields of tuples one by one."""
    found: list[Any] = []
    for argument in call.args:
        found += argument.fields if isinstance(argument, tvm.ir.Tuple) else [argument]
    return [operand for operand in found if isinstance(getattr(operand, "ty", None), relax.TensorType)]


def legalized(call: relax.Call, operands: Sequence[Any]) -> tirx.PrimFunc:
    """Make the kernel that an operator would be, a parameter for each operand.

    Raises
    ------
    EmbeddingError
        If it is more than one kernel, or takes its operands in another way.
    """
    variables = [relax.Var(f"p{number}", operand.ty) for number, operand in enumerate(operands)]
    if len({id(operand) for operand in operands}) != len(operands):
        raise EmbeddingError("an operand is used twice")
    replaced = iter(variables)
    arguments = [
        relax.Tuple([next(replaced) for _ in argument.fields])
        if isinstance(argument, tvm.ir.Tuple)
        else next(replaced) if isinstance(getattr(argument, "ty", None), relax.TensorType) else argument
        for argument in call.args
    ]  # fmt: skip
    builder = relax.BlockBuilder()
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(relax.Call(call.op, arguments, call.attrs, call.ty_args))
        builder.emit_func_output(result)
    mod = relax.transform.LegalizeOps(enable_warning=False)(builder.get())
    bindings = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    calls = [value for value in bindings if isinstance(value, relax.Call)]
    if len(calls) != 1 or calls[0].op != tvm.ir.Op.get("relax.call_tir") or len(calls[0].args) != 2:
        raise EmbeddingError("it is not one kernel")
    taken = list(calls[0].args[1].fields)
    if len(taken) != len(variables) or not all(a.same_as(b) for a, b in zip(taken, mod["main"].params, strict=True)):
        raise EmbeddingError("its kernel takes other operands than it does")
    return mod[calls[0].args[0]]


def _kernel(
    func: tirx.PrimFunc, block: str, operator: Dataflow, offers: Sequence[Offer], is_constant: Sequence[bool]
) -> tuple[_Kernel, KernelChoice]:
    """Choose an embedding and write its kernel."""
    stages = Stages.of(func)
    place = stages.place(block)
    product = stages.stages[place]
    factors = [_buffer(product.reads, access.tensor) for access in operator.inputs]
    result = _buffer(product.writes, operator.output.tensor)
    sources = [tuple(stages.sources(factor)) for factor in factors]
    constants = [bool(numbers) and all(is_constant[number] for number in numbers) for numbers in sources]
    kinds = [_source(stages, factor, known) for factor, known in zip(factors, constants, strict=True)]
    choice = choose_kernel(operator, offers, (kinds[0], kinds[1]))
    found, homes = choice.plan.strategy, choice.plan.homes
    tensors = [
        placeholder(*factor_shape(found, at, homes[at]), f"factor{at}" if homes[at] == "given" else access.tensor)
        for at, access in enumerate(operator.inputs)
    ]
    written = te.create_prim_func([*tensors, kernel_te(found, homes, tensors, choice.instruction.name)])
    given = [at for at in range(2) if homes[at] == "given"]
    inner = Stages.of(written)
    buffers = [inner.params[at] if at in given else factors[at] for at in range(2)]
    inner = inner.onto([*buffers, result])
    needed = {at for number in range(2) if number not in given for at in stages.before(factors[number])}
    before = [stages.stages[at] for at in sorted(needed)]
    after = list(stages.stages[place + 1 :])
    operands = tuple(
        number
        for number in range(len(stages.params) - 1)
        if any(number in sources[at] for at in range(2) if at not in given)
        or any(read.same_as(stages.params[number]) for stage in after for read in stage.reads)
    )
    params = [*(stages.params[number] for number in operands), *(buffers[at] for at in given), stages.params[-1]]
    made = stages.function([*before, *inner.stages, *after], params, inner.buffers, written.attrs)
    made = made.without_attr("global_symbol").with_attr("op_pattern", OUT_ELEMENTWISE)
    stored = tuple((sources[at], _store(stages, factors[at], at, found)) for at in given)
    return _Kernel(made, operands, stored), choice


def _source(stages: Stages, factor: Any, is_constant: bool) -> Source:
    """Say what a factor comes from."""
    if is_constant:
        return "constant"
    before = stages.before(factor)
    divides: list[Any] = []
    for at in before:
        tvm_ffi.structural_walk(stages.stages[at].statement, [((prim.FloorMod, prim.FloorDiv), divides.append)])
    return "spread" if divides else "padded" if before else "given"


def _buffer(buffers: Sequence[Any], name: str) -> Any:
    return next(buffer for buffer in buffers if str(buffer.name) == name)


def _store(stages: Stages, factor: Any, at: int, found: Any) -> Store:
    """Make what stores a constant factor, after what its kernel does to it."""
    shape, dtype = factor_shape(found, at, "given")
    computed = stored_when_compiling(stages, factor)

    def store(values: Sequence[NDArray]) -> NDArray:
        return pack(computed(values), found.operands[at]).astype(dtype).reshape(shape)

    return store


def stored_when_compiling(stages: Stages, factor: Any) -> Store:
    """Make what computes a factor of a kernel from constant operands, in their order."""
    made_by = [stages.stages[number] for number in stages.before(factor)]
    params = [stages.params[number] for number in stages.sources(factor)]

    def store(values: Sequence[NDArray]) -> NDArray:
        if not made_by:
            return values[0]
        func = stages.function(made_by, [*params, factor]).with_attr("global_symbol", "main")
        compiled = tvm.compile(tvm.IRModule({"main": func}), tvm.target.Target("llvm"))
        tensor = tvm.runtime.empty([int(extent) for extent in factor.ty.shape], str(factor.ty.dtype))
        compiled["main"](*(tvm.runtime.tensor(np.ascontiguousarray(value)) for value in values), tensor)
        return tensor.numpy()

    return store
