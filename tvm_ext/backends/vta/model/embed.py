"""Operators that no rule of VTA takes, written as convolutions that its matrix unit can be embedded into.

before: ``y = relu(conv2d(x, w, dilation=2) + b)``
after:  ``y = unpacked(relu(conv2d(packed(x), w') + b'))`` with a convolution that is a layer of VTA

The kernels around it store data as the embedding says; weights and biases are stored when compiling. Where VTA would
not be faster than the CPU with these kernels, the operator stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax, te, tirx, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.backends.vta.codegen.embedded import EmbeddedLayer, embedded_layer
from tvm_ext.backends.vta.codegen.embedded_program import estimated_cycles
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.model.host import HostSpeed
from tvm_ext.backends.vta.model.relax_layers import bindings_of, identifiers
from tvm_ext.backends.vta.model.relax_rules import PRODUCTS, is_float, number_of, operator_of
from tvm_ext.backends.vta.timing.costs import CycleCosts
from tvm_ext.embedding.choice import Offer, choose, quantized
from tvm_ext.embedding.kernel import placeholder
from tvm_ext.embedding.packing import pack, pack_te, unpack_te, wide
from tvm_ext.embedding.read import read_products
from tvm_ext.embedding.relax.embed_operators import OPERATORS
from tvm_ext.embedding.relax.operator_kernel import legalized, operands_of, stored_when_compiling
from tvm_ext.embedding.relax.splice import Stages
from tvm_ext.embedding.strategy import Strategy
from tvm_ext.errors import EmbeddingError, VTAProgramError
from tvm_ext.graph.origins import OriginBuilder
from tvm_ext.relax_utils import constant, static_shape
from tvm_ext.schedules.instructions.rows import vta_gemm


@dataclass(frozen=True)
class _Plan:
    """What an operator becomes: kernels that store data and read the result, and a convolution between them."""

    layer: EmbeddedLayer
    data: Any
    pack: tirx.PrimFunc
    weights: NDArray
    unpack: tirx.PrimFunc

    def packed_result(self, values: NDArray) -> NDArray:
        """Store an array of the operator's result as the convolution has it."""
        order, shape = self.layer.plain(2)
        return pack(values, self.layer.strategy.operands[2]).transpose(order).reshape(shape)


def embed_layers(
    mod: tvm.IRModule,
    refused: Collection[str],
    config: VTAConfig,
    costs: CycleCosts,
    host: HostSpeed,
    skip: Collection[str] = (),
    everything: bool = False,
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
    plans: dict[Any, _Plan] = {}
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
            plans[binding.var] = _plan(binding.value, config, costs, None if everything else host)
        except EmbeddingError as error:
            reasons[name] = str(error)
    if not plans:
        return mod, {}, reasons
    rewriter = _Rewriter(mod, function, plans)
    global_var = mod.get_global_var("main")
    rewriter.builder_.update_func(global_var, rewriter.visit_expr(function))
    found = {names[variable]: made for variable, made in rewriter.convolutions.items()}
    return rewriter.builder_.finalize(), found, reasons


def _plan(call: relax.Call, config: VTAConfig, costs: CycleCosts, host: HostSpeed | None) -> _Plan:
    """Embed the matrix unit into an operator whose right factor is constant.

    Raises
    ------
    EmbeddingError
        If there is no embedding, or the CPU is expected to be faster (``host``, unless there is none).
    """
    operands = operands_of(call)
    values = [constant(operand) for operand in operands]
    shapes = [static_shape(operand) for operand in (*operands, call)]
    if any(shape is None or 0 in shape for shape in shapes) or not all(map(is_float, (*operands, call))):
        raise EmbeddingError("its operands are not all float32 tensors of known extents")
    if [value is None for value in values].count(True) != 1 or len(values) != 2:
        raise EmbeddingError("it is not a product of a tensor and of constant weights")
    func = legalized(call, operands)
    products = read_products(func)
    if len(products) != 1:
        raise EmbeddingError(f"its kernel has {len(products)} blocks that sum up products; expected one")
    ((block, operator),) = products.items()
    if isinstance(operator, EmbeddingError):
        raise operator
    stages = Stages.of(func)
    product = stages.stages[stages.place(block)]
    if product is not stages.stages[-1]:
        raise EmbeddingError("its kernel has more blocks after the product")
    factors = [next(it for it in product.reads if str(it.name) == access.tensor) for access in operator.inputs]
    known = [all(values[number] is not None for number in stages.sources(factor)) for factor in factors]
    if known not in ([True, False], [False, True]):
        raise EmbeddingError("it is not a product of a tensor and of constant weights")
    layer = _cheapest(operator, known.index(False), config, costs)
    if host is not None:
        seconds = estimated_cycles(layer, config, costs) / (costs.clock_mhz * 1e6) + host.start
        if seconds >= operator.macs / host.macs:
            raise EmbeddingError(f"VTA would take {seconds * 1e3:.2f} ms, data stored anew; the CPU takes less")
    found, at = layer.strategy, known.index(False)
    number = stages.sources(factors[at])[0]
    weights = stored_when_compiling(stages, factors[1 - at])([it for it in values if it is not None])
    order, shape = layer.plain(1)
    stored = pack(weights, found.operands[1 - at]).transpose(order).reshape(shape)
    return _Plan(
        layer, operands[number], _packing(stages, number, factors[at], layer, at), np.ascontiguousarray(stored),
        _unpacking(found, layer),
    )  # fmt: skip


def _cheapest(operator: Any, data: int, config: VTAConfig, costs: CycleCosts) -> EmbeddedLayer:
    """Find the embedding of least cycles that has the operator's data where VTA's convolutions have theirs."""

    def layer_of(found: Strategy) -> EmbeddedLayer:
        if found.embedding.operand(0) != data:
            raise EmbeddingError("its data would be weights of the matrix unit")
        return embedded_layer(found, config)

    def cost(found: Strategy) -> float:
        try:
            return estimated_cycles(layer_of(found), config, costs)
        except VTAProgramError as error:
            raise EmbeddingError(str(error)) from error

    offer = Offer(vta_gemm(config.batch, config.block), cost)
    choice = choose(quantized(operator, offer.instruction), offer)
    if choice.best is None:
        raise EmbeddingError(choice.reason)
    return layer_of(choice.best.strategy)


def _packing(stages: Stages, number: int, factor: Any, layer: EmbeddedLayer, at: int) -> tirx.PrimFunc:
    """Write the kernel that stores data for the convolution, after what the operator's kernel does to it."""
    order, shape = layer.plain(0)
    stored = layer.strategy.operands[at]
    tensor = placeholder(stored.access.shape, "float32", "given")
    packed = topi.reshape(topi.transpose(pack_te(tensor, stored, "stored"), order), wide(shape))
    inner = Stages.of(te.create_prim_func([tensor, packed]))
    result = inner.params[-1]
    inner = inner.onto([factor, result])
    before = [stages.stages[place] for place in stages.before(factor)]
    return stages.function([*before, *inner.stages], [stages.params[number], result], inner.buffers)


def _unpacking(found: Strategy, layer: EmbeddedLayer) -> tirx.PrimFunc:
    """Write the kernel that reads the operator's result from that of the convolution."""
    order, shape = layer.plain(2)
    stored = found.operands[2]
    tensor = placeholder(shape, "float32", "stored")
    parts = topi.reshape(tensor, wide([stored.shape[at] for at in order]))
    dimensions = topi.transpose(parts, [int(at) for at in np.argsort(order)])
    return te.create_prim_func([tensor, unpack_te(dimensions, found, "result")]).without_attr("global_symbol")


@mutator
class _Rewriter(PyExprMutator):
    """Puts convolutions in the place of operators; biases and bounds that follow move in front of the unpacking."""

    def __init__(self, mod: tvm.IRModule, function: relax.Function, plans: Mapping[Any, _Plan]) -> None:
        super().__init__(mod)
        self.builder_ = OriginBuilder(mod)
        self.plans = plans
        self.convolutions: dict[Any, relax.Var] = {}
        uses: dict[Any, list[Any]] = {}
        bindings = bindings_of(function)
        for binding in bindings:
            for operand in relax.analysis.free_vars(binding.value):
                uses.setdefault(operand, []).append(binding)
        leaving = set(relax.analysis.free_vars(function.body.body))
        self.chains: dict[Any, list[Any]] = {}
        """Variable of an operator to what follows it and can be done before its result is unpacked."""
        self.inside: dict[Any, Any] = {}
        """Variable of a chain to that of its operator."""
        self.packed: dict[Any, relax.Var] = {}
        for anchor in plans:
            chain, current = [anchor], anchor
            while len(uses.get(current, [])) == 1 and current not in leaving:
                following = uses[current][0]
                if self._moved(plans[anchor], following.value, current) is None:
                    break
                current = following.var
                chain.append(current)
            self.chains[anchor] = chain
            self.inside |= dict.fromkeys(chain, anchor)

    def _moved(self, plan: _Plan, call: relax.Call, operand: Any, packed: Any = None) -> relax.Expr | None:
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
        shape = plan.layer.strategy.operands[2].access.shape
        values = constant(call.args[1] if call.args[0].same_as(operand) else call.args[0])
        if values is None or static_shape(call) != tuple(shape):
            return None
        bias = plan.packed_result(np.broadcast_to(values, shape).astype("float32"))
        inside = plan.packed_result(np.ones(shape, "float32")) > 0
        each = np.where(inside, bias, -np.inf).max(axis=(0, 2, 3), keepdims=True)
        each = np.where(np.isfinite(each), each, 0).astype("float32")
        if not np.array_equal(np.where(inside, bias, each), np.broadcast_to(each, bias.shape)):
            return None
        return relax.op.add(packed, relax.const(each))

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Replace an operator, and what follows it."""
        anchor = self.inside.get(binding.var)
        if anchor is None:
            super().visit_var_binding_(binding)
            return
        plan, chain = self.plans[anchor], self.chains[anchor]
        with self.builder_.coming_from(binding.var.span):
            if binding.var.same_as(anchor):
                made = self._convolution(plan)
                self.convolutions[anchor] = made
            else:
                before = chain[chain.index(binding.var) - 1]
                moved = self._moved(plan, binding.value, before, self.packed[anchor])
                assert moved is not None  # the chain ends before what cannot move
                made = self.builder_.emit(moved)
            self.packed[anchor] = made
            if not binding.var.same_as(chain[-1]):
                return
            kernel = self.builder_.add_func(plan.unpack, "unpack_for_host")
            result = relax.call_tir(kernel, [made], binding.var.ty)
            leaves = self.builder_.current_block_is_dataflow() and not isinstance(binding.var, relax.DataflowVar)
            self.set_var_remap(binding.var, self.builder_.emit_output(result) if leaves else self.builder_.emit(result))

    def _convolution(self, plan: _Plan) -> relax.Var:
        conv = plan.layer.conv
        kernel = self.builder_.add_func(plan.pack, "pack_for_vta")
        shape = relax.TensorType(plan.layer.plain(0)[1], "float32")
        data = self.builder_.emit(relax.call_tir(kernel, [self.visit_expr(plan.data)], shape))
        strides = (conv.stride, conv.stride if conv.across is None else conv.across[1])
        return self.builder_.emit(
            relax.op.nn.conv2d(data, relax.const(plan.weights), strides=strides, groups=conv.groups)
        )
