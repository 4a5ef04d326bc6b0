"""An operator as a kernel around an instruction: read from the kernel that it would be without, chosen, and written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm import relax, s_tir, te, tirx
from tvm.ir.prim import expr as prim

from tvm_ext.embedding.choice import KernelChoice, Offer, choose_kernel
from tvm_ext.embedding.dataflow import Dataflow
from tvm_ext.embedding.kernel import Source, factor_shape, kernel_te, placeholder
from tvm_ext.embedding.packing import pack
from tvm_ext.embedding.read import read_products
from tvm_ext.embedding.relax.splice import Stages
from tvm_ext.errors import EmbeddingError
from tvm_ext.relax_utils import OUT_ELEMENTWISE

Store = Callable[[Sequence[NDArray]], NDArray]
"""Stores a factor for the instruction, from the values of the operator's constant operands."""


@dataclass(frozen=True)
class Kernel:
    """An embedded kernel.

    Attributes
    ----------
    func : PrimFunc
    operands : tuple of int
        The operator's operands that it takes.
    stored : tuple of (tuple of int, callable)
        Factors that it takes behind them: the constant operands that they come from, and what stores them.
    """

    func: tirx.PrimFunc
    operands: tuple[int, ...]
    stored: tuple[tuple[tuple[int, ...], Store], ...]


@dataclass(frozen=True)
class Candidate:
    """An embedding that was chosen for an operator, before its kernel is written.

    Attributes
    ----------
    func : PrimFunc
        The operator's kernel without it.
    block : str
        Its product there.
    operator : Dataflow
    choice : KernelChoice
    is_constant : tuple of bool
        For each operand of the operator.
    """

    func: tirx.PrimFunc
    block: str
    operator: Dataflow
    choice: KernelChoice
    is_constant: tuple[bool, ...]

    @property
    def cycles(self) -> float:
        """What its kernel is expected to take on one core."""
        return self.choice.plan.cycles

    @property
    def text(self) -> str:
        """Instruction, mapping and cycles."""
        embedding = self.choice.plan.strategy.embedding
        return f"{self.choice.instruction.name}, {embedding}, {self.cycles:.0f} cycles"


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
    return _without_copies(mod[calls[0].args[0]])


def _without_copies(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let what follows read tensors themselves where a block only copies them, as padding by nothing does."""
    if not isinstance(func.body, s_tir.SBlockRealize):
        return func
    schedule = s_tir.Schedule(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    for block in schedule.get_child_blocks(schedule.get_sblock("root"))[:-1]:
        body = schedule.get(block).body
        if (
            isinstance(body, tirx.BufferStore)
            and isinstance(body.value, tvm.ir.TensorLoad)
            and all(to.same_as(since) for to, since in zip(body.indices, body.value.indices, strict=False))
            and [int(extent) for extent in body.buffer.ty.shape]
            == [int(extent) for extent in body.value.source.ty.shape]
        ):
            schedule.compute_inline(block)
    return schedule.mod["main"].without_attr("global_symbol")


def candidate(func: tirx.PrimFunc, offers: Sequence[Offer], is_constant: Sequence[bool]) -> Candidate:
    """Choose the instruction and the embedding for an operator.

    Parameters
    ----------
    func : PrimFunc
        Its kernel, not scheduled; a parameter for each operand, and the result.
    offers : sequence of Offer
    is_constant : sequence of bool
        For each operand.

    Raises
    ------
    EmbeddingError
        If the kernel is no product that can be read, or no instruction fits.
    """
    products = read_products(func)
    if len(products) != 1:
        raise EmbeddingError(f"its kernel has {len(products)} blocks that sum up products; expected one")
    ((block, operator),) = products.items()
    if isinstance(operator, EmbeddingError):
        raise operator
    stages = Stages.of(func)
    factors = [_buffer(stages.stages[stages.place(block)].reads, access.tensor) for access in operator.inputs]
    kinds = [_source(stages, factor, _is_known(stages, factor, is_constant)) for factor in factors]
    choice = choose_kernel(operator, offers, (kinds[0], kinds[1]))
    return Candidate(func, block, operator, choice, tuple(is_constant))


def write_kernel(chosen: Candidate) -> Kernel:
    """Write the kernel of an embedding that was chosen."""
    stages, operator, choice = Stages.of(chosen.func), chosen.operator, chosen.choice
    place = stages.place(chosen.block)
    product = stages.stages[place]
    factors = [_buffer(product.reads, access.tensor) for access in operator.inputs]
    result = _buffer(product.writes, operator.output.tensor)
    sources = [tuple(stages.sources(factor)) for factor in factors]
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
    return Kernel(made, operands, stored)


def _is_known(stages: Stages, factor: Any, is_constant: Sequence[bool]) -> bool:
    sources = tuple(stages.sources(factor))
    return bool(sources) and all(is_constant[number] for number in sources)


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
