"""Let kernels that work in place write to memory of their own, where they would change what others can still see.

before: ``y = call_tir_inplace(kernel, (x,), inplace_indices=[0])``, ``x`` an input, a constant or read elsewhere
after:  ``y = call_tir(kernel_apart, (x,))``, which copies ``x`` into the memory of ``y`` first

``call_tir_inplace`` promises that nobody looks at its operand afterwards. The caller of a model does look at its
inputs, the next run at the constants, and fusion may move a kernel that reads the operand behind the one that writes
it. A call stays as it is where a scheduled kernel made its operand for it alone, out of what this function was given:
such a result becomes neither a constant nor a view.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.passes.wide_indices import wide_indices
from tvm_ext.relax_utils import OPAQUE


def foreign_kernels() -> list[tvm.transform.Pass]:
    """List the passes that give kernels written by hand the form of those that operators are lowered to."""
    return [inputs_kept(), wide_indices()]


def inputs_kept() -> tvm.transform.Pass:
    """Make the pass; it runs before constants are folded and kernels are merged."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.InputsKept")
    def _inputs_kept(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        unsafe = {
            variable: func
            for variable, func in mod.functions_items()
            if isinstance(func, relax.Function) and _calls_in_place(func)
        }
        if not unsafe:
            return mod
        rewriter = _Separator(mod)
        for variable, func in unsafe.items():
            rewriter.builder_.update_func(variable, rewriter.separated(func))
        return rewriter.builder_.finalize()

    return _inputs_kept


def with_copies(kernel: tirx.PrimFunc, places: list[int], arguments: int) -> tirx.PrimFunc:
    """Make a kernel that returns what another one does in place, and leaves its operands as they are.

    Parameters
    ----------
    kernel : tirx.PrimFunc
        Takes its arguments, then the results that get memory of their own.
    places : list of int
        For each result the place of the argument whose memory it takes, or -1.
    arguments : int
        Number of arguments.

    Returns
    -------
    tirx.PrimFunc
        Takes its arguments, then all results in their order.
    """
    parameters = list(kernel.params)
    given, made = parameters[:arguments], iter(parameters[arguments:])
    results, copies = [], []
    for place in places:
        if place < 0:
            results.append(next(made))
            continue
        result = parameters[place]
        kind = result.ty
        source = tirx.decl_buffer(kind.shape, str(kind.dtype), f"{result.name}_before", layout=kind.layout)
        given[place] = source
        results.append(result)
        copies.append(_copy(source, result))
    whole = kernel.body
    if isinstance(whole, s_tir.SBlockRealize):
        root = whole.block
    else:  # loops alone: passes of TVM expect kernels of blocks from call_tir, and need not look into this one
        whole = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", kernel.body))
        root = whole.block
        kernel = kernel.with_attrs({"s_tir": True, "tirx.is_scheduled": True})
    block = s_tir.SBlock(
        root.iter_vars,
        root.reads,
        root.writes,
        root.name_hint,
        tirx.SeqStmt([*copies, root.body]),
        root.init,
        root.alloc_buffers,
        root.match_buffers,
        root.annotations,
    )
    body = s_tir.SBlockRealize(whole.iter_values, whole.predicate, block)
    return tirx.PrimFunc([*given, *results], body, kernel.ret_type, kernel.attrs).with_attr("op_pattern", OPAQUE)


def _copy(source: Any, result: Any) -> Any:
    """Write the loops that copy a tensor."""
    shape = list(source.ty.shape)
    loops, axes = ([tirx.Var(f"{name}{axis}", extent.ty) for axis, extent in enumerate(shape)] for name in "iv")
    starts = [tirx.const(0, str(extent.ty.dtype)) for extent in shape]
    domains = map(tvm.ir.Range.from_min_extent, starts, shape)
    iterated = [tirx.IterVar(domain, axis, 0) for domain, axis in zip(domains, axes, strict=True)]
    element = [tvm.ir.Range.from_min_extent(axis, tirx.const(1, str(axis.ty.dtype))) for axis in axes]
    reads, writes = ([tirx.BufferRegion(buffer, element)] for buffer in (source, result))
    store = tirx.BufferStore(result, tirx.BufferLoad(source, axes), axes)
    body: Any = s_tir.SBlockRealize(loops, True, s_tir.SBlock(iterated, reads, writes, "copy", store))
    for loop, start, extent in reversed(list(zip(loops, starts, shape, strict=True))):
        body = tirx.For(loop, start, extent, tirx.ForKind.SERIAL, body)
    return body


@mutator
class _Separator(PyExprMutator):
    """Replaces the calls in place of the functions of one module."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._mod = mod
        self._own: set[Any] = set()
        self._made: dict[tuple[str, tuple[int, ...]], Any] = {}

    def separated(self, func: relax.Function) -> relax.Function:
        """Give a function of which no kernel writes what is not its own."""
        self._own = _own_results(self._mod, func)
        return self.visit_expr(func)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Call a copy of the kernel that begins with a copy of its operands."""
        if getattr(call.op, "name", "") != "relax.call_tir_inplace" or not isinstance(call.args[1], relax.Tuple):
            return super().visit_call_(call)
        places = [int(place) for place in call.attrs.inplace_indices]
        operands = call.args[1].fields
        if all(place < 0 or operands[place] in self._own for place in places):
            return super().visit_call_(call)
        name = call.args[0].name_hint
        key = name, tuple(places)
        if key not in self._made:
            kernel = with_copies(self._mod[call.args[0]].without_attr("global_symbol"), places, len(operands))
            self._made[key] = self.builder_.add_func(kernel, f"{name}_apart")
        separate = relax.Call(
            tvm.ir.Op.get("relax.call_tir"), [self._made[key], *call.args[1:]], None, call.ty_args, call.span
        )
        return super().visit_call_(separate)


def _calls_in_place(func: relax.Function) -> bool:
    found = []

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call) and getattr(expr.op, "name", "") == "relax.call_tir_inplace":
            found.append(expr)

    relax.analysis.post_order_visit(func, visit)
    return bool(found)


def _own_results(mod: tvm.IRModule, func: relax.Function) -> set[Any]:
    """List the variables, used once, that hold new memory, made by a finished kernel of what the function is given."""
    seen: Counter[Any] = Counter()
    bindings: list[Any] = []
    tvm_ffi.structural_walk(
        func, [(relax.VarBinding, bindings.append), (relax.Var, lambda variable: seen.update([variable]))]
    )
    items = Counter(
        (binding.value.tuple_value, int(binding.value.index))
        for binding in bindings
        if isinstance(binding.value, relax.TupleGetItem)
    )
    parts = Counter(variable for (variable, _), times in items.items() for _ in range(times))
    given = set(func.params)
    new: set[Any] = set()
    for binding in bindings:
        value = binding.value
        if isinstance(value, relax.TupleGetItem):
            whole = value.tuple_value
            # All that is seen of the tuple: where it is defined, and its parts, each of them once.
            if whole in new and seen[whole] == 1 + parts[whole] and items[whole, int(value.index)] == 1:
                new.add(binding.var)
        elif isinstance(value, relax.Call) and getattr(value.op, "name", "") == "relax.call_tir":
            kernel = mod[value.args[0]]
            operands = value.args[1].fields if isinstance(value.args[1], relax.Tuple) else [value.args[1]]
            # Any other may be folded, taken for a view, or written where one of its neighbours is.
            if "tirx.is_scheduled" in (kernel.attrs or {}) and any(operand in given for operand in operands):
                given.add(binding.var)
                new.add(binding.var)
    return {variable for variable in new if seen[variable] == 2}
