"""Operators that no rule of VTA takes, written as convolutions that its matrix unit can be embedded into.

before: ``y = relu(conv2d(x, w, dilation=2) + b)``
after:  ``y = unpacked(relu(conv2d(packed(x), w') + b'))`` with a convolution that is a layer of VTA

The kernels around it store data as the embedding says; weights and biases are stored when compiling. Between neighbours
that agree on how a tensor is stored there are no such kernels. Where VTA would not be faster than the CPU with them,
the operator stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.model.embeddable import Embeddable, Way, packed_result, unpacking
from tvm_ext.backends.vta.model.embedded_chains import Padding, Reader, choose_ways
from tvm_ext.backends.vta.model.host import HostSpeed
from tvm_ext.backends.vta.model.relax_layers import bindings_of, identifiers
from tvm_ext.backends.vta.model.relax_rules import PRODUCTS, number_of, operator_of
from tvm_ext.backends.vta.timing.costs import CycleCosts
from tvm_ext.embedding.relax.embed_operators import OPERATORS
from tvm_ext.errors import EmbeddingError
from tvm_ext.graph.origins import OriginBuilder
from tvm_ext.relax_utils import constant, static_shape


def embed_layers(
    mod: tvm.IRModule,
    refused: Collection[str],
    config: VTAConfig,
    costs: CycleCosts,
    host: HostSpeed,
    skip: Collection[str] = (),
    everything: bool = False,
    fractions: MutableMapping[relax.Var, int] | None = None,
) -> tuple[tvm.IRModule, dict[str, relax.Var], dict[str, str]]:
    """Write operators as convolutions for VTA where that should be faster than the CPU.

    Parameters
    ----------
    mod : IRModule
        With a function ``main`` in floats, constants folded.
    refused : collection of str
        Identifiers of operators that VTA has a rule for, and that the rule does not take.
    config : VTAConfig
    costs : CycleCosts
    host : HostSpeed
    skip : collection of str
        Identifiers of operators that stay as they are.
    everything : bool
        Whether those that a rule takes are embedded as well, and those that the CPU may be faster at.
    fractions : mapping, optional
        Of a quantised model: variable to the bits after its binary point. Those of the new function are added. Only
        operators whose data and result have some are embedded.

    Returns
    -------
    IRModule
    dict
        Identifier of each operator that was rewritten, to the variable of its convolution.
    dict
        Identifier of each one that was looked at and was not, to a reason.
    """
    function = mod["main"]
    names = identifiers(function)
    operators: dict[Any, Embeddable] = {}
    reasons: dict[str, str] = {}
    for binding in bindings_of(function):
        operator, name = operator_of(binding.value), names[binding.var]
        if (
            operator not in OPERATORS
            or name in skip
            or (operator in PRODUCTS and name not in refused and not everything)
        ):
            continue
        try:
            operators[binding.var] = Embeddable.of(binding.value, config, costs)
        except EmbeddingError as error:
            reasons[name] = str(error)
    uses = _Uses.of(function)
    choice, slow = _choose(operators, uses, costs, None if everything else host, fractions or {})
    reasons |= {names[variable]: reason for variable, reason in slow.items()}
    if not choice.ways:
        return mod, {}, reasons
    rewriter = _Rewriter(mod, operators, choice, uses, fractions or {})
    global_var = mod.get_global_var("main")
    rewriter.builder_.update_func(global_var, rewriter.visit_expr(function))
    if fractions:
        kept = {rewriter.visit_expr(variable): bits for variable, bits in fractions.items()}
        fractions.update(kept | rewriter.fractions)
    found = {names[variable]: made for variable, made in rewriter.convolutions.items()}
    return rewriter.builder_.finalize(), found, reasons


@dataclass(frozen=True)
class _Uses:
    """What reads what in a function.

    Attributes
    ----------
    readers : mapping
        Variable to the bindings that read it.
    leaving : frozenset
        Variables that the function returns.
    """

    readers: Mapping[Any, Sequence[Any]]
    leaving: frozenset[Any]

    @classmethod
    def of(cls, function: relax.Function) -> _Uses:
        uses: dict[Any, list[Any]] = {}
        for binding in bindings_of(function):
            for operand in relax.analysis.free_vars(binding.value):
                uses.setdefault(operand, []).append(binding)
        return cls(uses, frozenset(relax.analysis.free_vars(function.body.body)))

    def chain(self, anchor: Any, way: Way) -> list[Any]:
        """List the variables of an operator and of what follows it that can be done before its result is unpacked."""
        chain, current = [anchor], anchor
        while len(self.readers.get(current, [])) == 1 and current not in self.leaving:
            following = self.readers[current][0]
            if _moved(way, following.value, current) is None:
                break
            current = following.var
            chain.append(current)
        return chain


@dataclass(frozen=True)
class _Choice:
    """What operators become.

    Attributes
    ----------
    ways : mapping
        Variable of an operator to the convolution.
    chains : mapping
        The same to the variables of what is done before its result is unpacked; its own is the first.
    joints : mapping
        The same to the variable of the operator whose convolution's result it reads as it is, and the padding.
    """

    ways: Mapping[Any, Way]
    chains: Mapping[Any, Sequence[Any]]
    joints: Mapping[Any, tuple[Any, Padding]]

    def kept(self, variable: Any, uses: _Uses) -> bool:
        """Whether nobody reads an operator's result but by its convolution's."""
        last = self.chains[variable][-1]
        reading = [binding.var for binding in uses.readers.get(last, [])]
        return (
            last not in uses.leaving
            and bool(reading)
            and all(reader in self.joints and self.joints[reader][0].same_as(variable) for reader in reading)
        )


def _choose(
    operators: Mapping[Any, Embeddable],
    uses: _Uses,
    costs: CycleCosts,
    host: HostSpeed | None,
    fractions: Mapping[relax.Var, int],
) -> tuple[_Choice, dict[Any, str]]:
    """Choose convolutions for operators, and leave out those that the CPU is faster at (``host``; None: it is not)."""
    left, slow = list(operators), dict[Any, str]()
    while True:
        choice = _choice_of({variable: operators[variable] for variable in left}, uses)
        slower = {} if host is None else _slower(choice, operators, uses, costs, host)
        if fractions:
            slower |= dict.fromkeys(
                [
                    variable
                    for variable, chain in choice.chains.items()
                    if operators[variable].data not in fractions or chain[-1] not in fractions
                ],
                "the model quantises other tensors than its data and its result",
            )
        if not slower:
            return choice, slow
        slow |= slower
        left = [variable for variable in left if variable not in slower]


def _choice_of(operators: Mapping[Any, Embeddable], uses: _Uses) -> _Choice:
    variables = list(operators)
    chains = [uses.chain(variable, it.ways[0]) for variable, it in operators.items()]
    readers, alone = [], {}
    for maker, chain in enumerate(chains):
        last = chain[-1]
        reading = [binding.var for binding in uses.readers.get(last, [])]
        inside = [variable for variable in reading if variable in operators and operators[variable].data.same_as(last)]
        if (shape := static_shape(last)) is not None:
            readers += [Reader(maker, variables.index(it), shape) for it in inside]
        alone[maker] = last not in uses.leaving and len(inside) == len(reading)
    numbers, paddings = choose_ways(list(operators.values()), readers, alone)
    ways = {variable: operators[variable].ways[at] for variable, at in zip(variables, numbers, strict=True)}
    final = {variable: uses.chain(variable, way) for variable, way in ways.items()}
    ends = {chain[-1]: variable for variable, chain in final.items()}
    # What is added may move in front of the unpacking of one way and not of another.
    joints = {
        variables[at]: (ends[operators[variables[at]].data], padding)
        for at, padding in paddings.items()
        if operators[variables[at]].data in ends
    }
    return _Choice(ways, final, joints)


def _slower(
    choice: _Choice, operators: Mapping[Any, Embeddable], uses: _Uses, costs: CycleCosts, host: HostSpeed
) -> dict[Any, str]:
    """Name the operators that the CPU is faster at, and what VTA would take."""
    found = {}
    for variable, way in choice.ways.items():
        kept = choice.kept(variable, uses)
        joined = variable in choice.joints
        cycles = way.cycles + way.packing * (not joined) + way.unpacking * (not kept)
        seconds = cycles / (costs.clock_mhz * 1e6) + host.start * (not joined)
        if seconds >= operators[variable].macs / host.macs:
            found[variable] = f"VTA would take {seconds * 1e3:.2f} ms, data stored anew; the CPU takes less"
    return found


def _moved(way: Way, call: relax.Call, operand: Any, packed: Any = None) -> relax.Expr | None:
    """Write what follows an operator as the same for its stored result; None if it has to wait."""
    packed = operand if packed is None else packed
    operator = operator_of(call)
    if operator == "relax.nn.relu":
        return relax.op.nn.relu(packed)
    if operator == "relax.clip":
        low, high = (number_of(argument) for argument in call.args[1:3])
        return None if low is None or high is None else relax.op.clip(packed, low, high)
    if operator != "relax.add":
        return None
    shape = way.layer.strategy.operands[2].access.shape
    values = constant(call.args[1] if call.args[0].same_as(operand) else call.args[0])
    if values is None or static_shape(call) != tuple(shape):
        return None
    bias = packed_result(way.layer, np.broadcast_to(values, shape).astype("float32"))
    inside = packed_result(way.layer, np.ones(shape, "float32")) > 0
    each = np.where(inside, bias, -np.inf).max(axis=(0, 2, 3), keepdims=True)
    each = np.where(np.isfinite(each), each, 0).astype("float32")
    if not np.array_equal(np.where(inside, bias, each), np.broadcast_to(each, bias.shape)):
        return None
    return relax.op.add(packed, relax.const(each))


@mutator
class _Rewriter(PyExprMutator):
    """Puts convolutions in the place of operators; biases and bounds that follow move in front of the unpacking."""

    def __init__(
        self,
        mod: tvm.IRModule,
        operators: Mapping[Any, Embeddable],
        choice: _Choice,
        uses: _Uses,
        known: Mapping[relax.Var, int],
    ) -> None:
        super().__init__(mod)
        self.builder_ = OriginBuilder(mod)
        self.operators = operators
        self.choice = choice
        self.uses = uses
        self.convolutions: dict[Any, relax.Var] = {}
        self.inside = {variable: anchor for anchor, chain in choice.chains.items() for variable in chain}
        """Variable of a chain to that of its operator."""
        self.packed: dict[Any, relax.Var] = {}
        self.known = known
        self.fractions: dict[relax.Var, int] = {}
        """Of what is stored for VTA, as of what it is stored from."""

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Replace an operator, and what follows it."""
        anchor = self.inside.get(binding.var)
        if anchor is None:
            super().visit_var_binding_(binding)
            return
        way, chain = self.choice.ways[anchor], self.choice.chains[anchor]
        with self.builder_.coming_from(binding.var.span):
            if binding.var.same_as(anchor):
                made = self._convolution(anchor)
                self.convolutions[anchor] = made
            else:
                before = chain[chain.index(binding.var) - 1]
                moved = _moved(way, binding.value, before, self.packed[anchor])
                assert moved is not None  # the chain ends before what cannot move
                made = self.builder_.emit(moved)
            self.packed[anchor] = made
            if binding.var in self.known:
                self.fractions[made] = self.known[binding.var]
            if not binding.var.same_as(chain[-1]) or self.choice.kept(anchor, self.uses):
                return
            kernel = self.builder_.add_func(unpacking(way.layer), "unpack_for_host")
            result = relax.call_tir(kernel, [made], binding.var.ty)
            leaves = self.builder_.current_block_is_dataflow() and not isinstance(binding.var, relax.DataflowVar)
            self.set_var_remap(binding.var, self.builder_.emit_output(result) if leaves else self.builder_.emit(result))

    def _convolution(self, anchor: Any) -> relax.Var:
        operator, layer = self.operators[anchor], self.choice.ways[anchor].layer
        conv, padding = layer.conv, (0, 0)
        if anchor in self.choice.joints:
            maker, padding = self.choice.joints[anchor]
            data = self.packed[maker]
        else:
            kernel = self.builder_.add_func(operator.packing(layer), "pack_for_vta")
            shape = relax.TensorType(layer.plain(0)[1], "float32")
            data = self.builder_.emit(relax.call_tir(kernel, [self.visit_expr(operator.data)], shape))
            if operator.data in self.known:
                self.fractions[data] = self.known[operator.data]
        weights = relax.const(operator.weights(layer))
        strides = (conv.stride, conv.horizontal.stride)
        return self.builder_.emit(
            relax.op.nn.conv2d(data, weights, strides=strides, padding=padding, groups=conv.groups)
        )
