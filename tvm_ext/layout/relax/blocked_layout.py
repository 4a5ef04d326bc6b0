"""Put convolution networks into the blocked layout NCHW{v}c, and convert only at the borders.

before: ``y = conv2d(x, w); z = relu(y); mean(z)`` over NCHW tensors
after:  ``x' = to_blocked(x); y' = conv2d_blocked(x', w'); z' = relu(y'); mean'(z')`` with ``w'`` packed at compile time
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import tvm
from tvm import relax

from tvm_ext.graph.decisions import Decision, with_decisions
from tvm_ext.graph.origins import all_origins
from tvm_ext.layout.choices import Choices
from tvm_ext.layout.convolution_plan import ConvolutionPlan, ConvolutionShape, plan_convolution
from tvm_ext.layout.relax.blocked import BlockedLayoutMutator
from tvm_ext.layout.relax.convolution import convolved_shape
from tvm_ext.layout.relax.flattened import flattened_images, take_flattened
from tvm_ext.layout.relax.offers import with_offers
from tvm_ext.layout.relax.rules import take
from tvm_ext.layout.relax.selected_blocks import selected_blocks
from tvm_ext.relax_utils import constant
from tvm_ext.schedules.cpu.machine import for_weights, machine_of


def blocked_layout(
    winograd: bool = True,
    bfloat16: bool = False,
    chosen: Mapping[str, str] | None = None,
    chains: bool = True,
) -> tvm.transform.Pass:
    """Make the pass; it works on Relax functions without control flow, for CPU targets, and leaves others alone.

    Parameters
    ----------
    winograd : bool
        Whether 3 x 3 convolutions may use Winograd's algorithm, which is faster and rounds less well.
    bfloat16 : bool
        Whether convolutions over all channels, or groups of them, are computed from operands rounded to bfloat16, which
        add up in float32; the target must have the instruction.
    chosen : mapping from key to option, optional
        What a search found better than the machine model's choices; see :class:`~tvm_ext.layout.choices.Choices`.
    chains : bool
        Whether chains of operators may become one kernel, as local response normalisation does.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.BlockedLayout")
    def _blocked_layout(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        machine = for_weights(machine_of(), constant_bytes(mod))
        choices = Choices(chosen or {})
        rewriter = BlockedLayoutMutator(mod, machine, take, winograd, bfloat16, choices, take_flattened, chains)
        for global_var, function in mod.functions.items():
            if isinstance(function, relax.Function) and _is_straight(function):
                rewriter.words.update(all_origins(function))
                rewriter.images = flattened_images(function)
                rewriter.uses = uses_of(function)
                select_wanted(rewriter, function)
                rewriter.has_open_extents = bool(relax.analysis.defined_symbolic_vars(function))
                rewriter.builder_.update_func(global_var, rewriter.visit_expr(function))
        return with_offers(with_decisions(rewriter.builder_.finalize(), rewriter.decisions), choices)

    return _blocked_layout


def constant_bytes(mod: tvm.IRModule) -> int:
    """Count the bytes of the constants of a module; a node that several functions share counts in each."""
    sizes: list[int] = []

    def note(node: relax.Expr) -> None:
        array = constant(node)
        if array is not None:
            sizes.append(array.nbytes)

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, note)
    return sum(sizes)


def uses_of(function: relax.Function) -> Counter[relax.Var]:
    """Count how often each variable of a function is read."""
    found: Counter[relax.Var] = Counter()

    def note(node: relax.Expr) -> None:
        if isinstance(node, relax.Call):
            found.update(arg for arg in node.args if isinstance(arg, relax.Var))
        elif isinstance(node, relax.Tuple):
            found.update(field for field in node.fields if isinstance(field, relax.Var))
        elif isinstance(node, relax.TupleGetItem):
            found[node.tuple_value] += 1
        elif isinstance(node, relax.SeqExpr):
            found[node.body] += 1

    relax.analysis.post_order_visit(function.body, note)
    return found


def select_wanted(rewriter: BlockedLayoutMutator, function: relax.Function) -> None:
    """Select blocks for a whole function, where that pays by the machine model, and note it."""
    rewriter.wanted = {}
    if relax.analysis.defined_symbolic_vars(function):
        return

    def plan_of(shape: ConvolutionShape, width: int) -> ConvolutionPlan | None:
        return plan_convolution(shape, rewriter.machine, 0, rewriter.winograd, rewriter.bfloat16, width)

    selected = selected_blocks(function, rewriter.machine, convolved_shape, plan_of)
    if selected is None:
        return
    found, wanted = selected
    if found.pays:
        rewriter.wanted = wanted
        rewriter.decisions.append(Decision("whole graph", (), "blocks of channels", found.summary))


def _is_straight(function: relax.Function) -> bool:
    """Whether a function is neither fused already nor holds an ``If`` or an inner function."""
    if function.attrs and ("Primitive" in function.attrs or "Codegen" in function.attrs):
        return False
    found = []
    relax.analysis.post_order_visit(
        function.body, lambda node: found.append(node) if isinstance(node, relax.If | relax.Function) else None
    )
    return not found
