"""Makes one kernel of expansion, depthwise convolution and projection, where that takes no more time.

before: ``t = expand(x, w); u = depthwise(t, v); y = project(u, p)``
after:  ``y = inverted_residual(x, w, v, p)``, in which a part of a band of ``t`` and ``u`` is alive at once

It stands behind FuseOps and FuseTIR, so that what follows each convolution is in its kernel. The expansion or the
projection may be missing, as in separable convolutions, and what is computed element by element may take the place of
the expansion, such as ``t = relu(a + b)``. Where squeeze and excitation stands between depthwise convolution and
projection, which needs all of ``u`` before the first product, the kernel ends with the depthwise convolution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from tvm_ext.fusion.inverted_residual_plan import ResidualPlan, ResidualShape, plan_residual, verify_residual
from tvm_ext.fusion.relax.convolution_stage import Stage, read_stage
from tvm_ext.fusion.relax.groups import variables_of
from tvm_ext.fusion.relax.prologues import is_step
from tvm_ext.graph.origins import with_origins, words_of
from tvm_ext.relax_utils import read_only
from tvm_ext.schedules.compute.inverted_residual import inverted_residual, wide
from tvm_ext.schedules.cpu.machine import machine_of

MOST_COMPUTED = 2
"""Tensors that a projection may read where its kernel begins with a smaller one: the image, and what is added."""


def fuse_inverted_residuals(slower: float = 1.0) -> tvm.transform.Pass:
    """Make the pass, for CPU targets.

    Parameters
    ----------
    slower : float
        How much longer one kernel may take than several, by the machine model.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.FuseInvertedResiduals")
    def _fuse(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        stages = {
            variable.name_hint: read_stage(func)
            for variable, func in mod.functions_items()
            if isinstance(func, tvm.tirx.PrimFunc) and "tirx.is_scheduled" not in (func.attrs or {})
        }
        if not any(stage is not None and stage.kind == "depthwise" for stage in stages.values()):
            return mod
        builder, changed = relax.BlockBuilder(mod), False
        kernels: dict[Any, Any] = {}
        for variable, func in mod.functions_items():
            if isinstance(func, relax.Function) and not (func.attrs and "Primitive" in func.attrs):
                fused = _fused(func, stages, builder, kernels, slower)
                if fused is not None:
                    builder.update_func(variable, fused)
                    changed = True
        return relax.transform.DeadCodeElimination()(builder.finalize()) if changed else mod

    return _fuse


@dataclass(frozen=True)
class _Block:
    """Bindings that become one kernel, the first and the last of which may be missing."""

    expand: Any
    window: Any
    project: Any
    plan: ResidualPlan

    @property
    def bindings(self) -> tuple[Any, ...]:
        """Those that there are."""
        return tuple(binding for binding in (self.expand, self.window, self.project) if binding is not None)


def _fused(func: Any, stages: Mapping[str, Stage | None], builder: Any, kernels: dict[Any, Any], slower: float) -> Any:
    """Give a function with inverted residuals as kernels; None where there are none."""
    blocks = _blocks(func, stages, slower)
    if not blocks:
        return None
    last = {block.bindings[-1].var: block for block in blocks}
    gone = {binding.var for block in blocks for binding in block.bindings[:-1]}
    rewritten = []
    for sequence in func.body.blocks:
        bindings = [
            _as_one(last[binding.var], stages, builder, kernels) if binding.var in last else binding
            for binding in sequence.bindings
            if binding.var not in gone
        ]
        is_dataflow = isinstance(sequence, relax.DataflowBlock)
        rewritten.append(relax.DataflowBlock(bindings) if is_dataflow else relax.BindingBlock(bindings))
    body = relax.SeqExpr(rewritten, func.body.body)
    fused = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
    words = {
        block.bindings[-1].var: tuple(word for binding in block.bindings for word in words_of(binding.var))
        for block in blocks
    }
    return with_origins(fused, words)


def _blocks(func: Any, stages: Mapping[str, Stage | None], slower: float) -> list[_Block]:
    """Find what becomes one kernel: with both neighbours of a depthwise convolution, or with the better one."""
    machine = machine_of()
    bindings = [binding for sequence in func.body.blocks for binding in sequence.bindings]
    makers = {binding.var: binding for binding in bindings if is_step(binding)}
    uses = Counter(variable for binding in bindings for variable in variables_of(binding))
    uses.update(relax.analysis.free_vars(func.body.body))
    readers = {variable: binding for binding in makers.values() for variable in variables_of(binding)}
    taken: set[Any] = set()
    found = []

    def stage_of(binding: Any, *kinds: str) -> Stage | None:
        stage = stages.get(_name(binding)) if binding is not None and binding.var not in taken else None
        return stage if stage is not None and stage.kind in kinds else None

    for binding in makers.values():
        stage = stage_of(binding, "depthwise")
        if stage is None:
            continue
        source = binding.value.args[1].fields[stage.data]
        before, behind = makers.get(source), readers.get(binding.var) if uses[binding.var] == 1 else None
        is_inner = uses[source] == 1 and isinstance(source, relax.DataflowVar)
        if not is_inner or stage_of(before, "pointwise", "elementwise") is None:
            before = None
        follower = stage_of(behind, "pointwise")
        if (
            follower is None
            or behind is None
            or not behind.value.args[1].fields[follower.data].same_as(binding.var)
            or not (follower.sums_blocks or _is_constant(behind.value.args[1].fields[follower.weight]))
        ):
            behind = None
        options = []
        for first, last in ((before, behind), (before, None), (None, behind)):
            if (first is None and last is None) or (first is None and _keeps_larger(stage, last)):
                continue
            shape = _shape(stages, first, binding, last)
            plan = plan_residual(shape, machine, slower)
            if plan is not None:
                verify_residual(plan, shape)
                options.append(_Block(first, binding, last, plan))
        if options:
            best = max(options, key=lambda block: (block.plan.apart - block.plan.seconds, block.plan.stored))
            found.append(best)
            taken.update(item.var for item in best.bindings)
    return found


def _keeps_larger(window: Stage, project: Any) -> bool:
    """Whether a kernel waits for what is added to its result with an input that is larger than what it computes of it.

    In randomly wired networks up to 11 tensors are added, and the largest tensor would be there until the last is made.
    """
    computed = [field for field in project.value.args[1].fields if not _is_constant(field)]
    return len(computed) > MOST_COMPUTED and prod(window.shape) > prod(window.result)


def _shape(stages: Mapping[str, Stage | None], first: Any, middle: Any, last: Any) -> ResidualShape:
    """Describe the convolutions of a block."""
    expand, window, project = (None if binding is None else stages[_name(binding)] for binding in (first, middle, last))
    assert window is not None
    assert window.window is not None
    batch, chunks, _, _, lanes = window.result
    inputs = expand.shape[1] * expand.shape[4] if expand is not None and expand.kind == "pointwise" else 0
    outputs = project.result[1] * project.result[4] if project is not None else 0
    reads = len(expand.buffers) if expand is not None and expand.kind == "elementwise" else 0
    return ResidualShape(batch, inputs, chunks, lanes, outputs, window.window, reads)


def _name(binding: Any) -> str:
    return str(binding.value.args[0].name_hint)


def _as_one(block: _Block, stages: Mapping[str, Stage | None], builder: Any, kernels: dict[Any, Any]) -> Any:
    """Bind the result of a block to the call of its kernel, which is made once."""
    inner = {binding.var for binding in block.bindings[:-1]}
    operands: dict[Any, int] = {}
    places = []
    for binding in block.bindings:
        fields = list(binding.value.args[1].fields)
        stage = stages[_name(binding)]
        assert stage is not None
        if binding is block.project and not stage.sums_blocks and block.plan.parts > 1:
            fields[stage.weight] = _of_whole_blocks(fields[stage.weight], stage.shape)
        places.append([-1 if field in inner else operands.setdefault(field, len(operands)) for field in fields])
    key = (tuple(map(_name, block.bindings)), tuple(map(tuple, places)), block.plan.bands, block.plan.parts)
    if key not in kernels:
        named = "_".join(_name(binding) for binding in block.bindings)
        kernel = _kernel(block, stages, places, list(operands))
        kernels[key] = builder.add_func(kernel, f"inverted_residual_{named}"[:60])
    result = block.bindings[-1]
    call = relax.Call(
        result.value.op, [kernels[key], relax.Tuple(list(operands))], result.value.attrs, result.value.ty_args
    )
    return relax.VarBinding(result.var, builder.normalize(call))


def _is_constant(operand: Any) -> bool:
    return isinstance(operand, tvm.ir.GenericConst)


def _of_whole_blocks(weight: Any, shape: Sequence[int]) -> Any:
    """Pack weights of 1 x 1 taps over parts of blocks as those over the whole blocks of an input of ``shape``."""
    values = read_only(weight.value)
    out_chunks, parts, _, _, part, block_out = values.shape
    chunks, lanes = shape[1], shape[-1]
    padded = np.zeros((out_chunks, chunks * lanes // part, part, block_out), values.dtype)
    padded[:, :parts] = values[:, :, 0, 0]
    return relax.const(padded.reshape(out_chunks, chunks, 1, 1, lanes, block_out))


def _kernel(
    block: _Block, stages: Mapping[str, Stage | None], places: Sequence[Sequence[int]], operands: list[Any]
) -> Any:
    """Make the kernel as tensor expressions, with what follows each convolution as it was in its kernel."""
    tensors = [
        te.placeholder(wide([int(extent) for extent in operand.ty.shape]), str(operand.ty.dtype), f"operand{number}")
        for number, operand in enumerate(operands)
    ]
    read = [stages[_name(binding)] for binding in block.bindings]
    parts: list[Any] = []
    for stage, taken in zip(read, places, strict=True):
        assert stage is not None
        given = {place: tensors[at] for place, at in enumerate(taken) if at >= 0}
        parts.append((given.get(stage.weight), stage.tail(given)))
    first, last = read[0], read[-1]
    assert first is not None
    assert last is not None
    at = 1 if block.expand is not None else 0
    window = read[at]
    assert window is not None
    assert window.window is not None
    prologue = parts[0][1] if first.kind == "elementwise" else None
    result = inverted_residual(
        tensors[places[0][first.data]] if prologue is None else lambda place: prologue(tirx.const(0, "float32"), place),
        parts[0] if block.expand is not None and prologue is None else None,
        parts[at],
        parts[-1] if block.project is not None else None,
        window.window,
        last.result,
        block.plan.bands,
        block.plan.parts,
    )
    func = te.create_prim_func([*tensors, result])
    return func.without_attr("global_symbol") if func.attrs and "global_symbol" in func.attrs else func
