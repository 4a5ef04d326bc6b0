"""Give the open extents of a kernel names of their own, so that it takes tensors alone.

before: ``add(x: [n, (h - 1) // 2 + 1], y: [n, (h - 1) // 2 + 1], h)``
after:  ``add(x: [n, extent], y: [n, extent])``

A kernel that gets an extent as an expression has to be told the variables in it, and a kernel that takes numbers is
fused with nothing. Behind a convolution of stride two every extent is such an expression. Once it has a name that the
tensors tell, indices are products of names instead of divisions, and kernels of one form on maps of several sizes are
the same kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir.prim import expr as prim
from tvm.relax.expr_functor import PyExprMutator, mutator


def named_extents(for_fusion: bool = False) -> tvm.transform.Pass:
    """Make the pass; it runs behind what makes kernels, and again behind what makes one of several.

    Parameters
    ----------
    for_fusion : bool
        Give every extent that is an expression a name of its own. TVM's ``FuseTIR`` puts the expressions of the calling
        function in the place of names, and takes two forms of an expression for two extents. Otherwise an extent that
        can be computed from others is.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.NamedExtents")
    def _named_extents(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        found = {
            variable: func
            for variable, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc) and _has_expressions(func) and not _is_written(func)
        }
        by_call_tir = _called_by_call_tir_alone(mod) if found else set()
        named = {
            variable: name_extents(func, for_fusion)
            for variable, func in sorted(found.items(), key=lambda item: str(item[0].name_hint))
            if variable in by_call_tir
        }
        named = {variable: (func, kept) for variable, (func, kept) in named.items() if not func.same_as(mod[variable])}
        if not named:
            return mod
        others = {variable: func for variable, func in mod.functions_items() if variable not in named}
        rewriter = _Caller(tvm.IRModule(others, attrs=mod.attrs), named)
        for variable, func in mod.functions_items():
            if isinstance(func, relax.Function):
                rewriter.builder_.update_func(variable, rewriter.visit_expr(func))
        return rewriter.builder_.finalize()

    return _named_extents


def name_extents(func: tirx.PrimFunc, for_fusion: bool = False) -> tuple[tirx.PrimFunc, tuple[int, ...]]:
    """Name the extents of a kernel's tensors.

    An extent of variables that are extents by themselves stays an expression, such as the ``4 * n`` of a tensor beside
    another one of ``n`` rows.

    Parameters
    ----------
    func : tirx.PrimFunc
        A kernel of blocks.
    for_fusion : bool
        See :func:`named_extents`.

    Returns
    -------
    func : tirx.PrimFunc
        The same object where there is nothing to name.
    kept : tuple of int
        Which of its parameters it still takes: all tensors, and numbers that its body reads.
    """
    tensors = [param for param in func.params if tirx.is_buffer_var(param)]
    extents = [extent for tensor in tensors for extent in tensor.ty.shape]
    known = {extent for extent in extents if isinstance(extent, tvm.ir.Var)}
    expressions = [extent for extent in extents if not isinstance(extent, tvm.ir.Var | tirx.IntImm)]
    namer = _Namer(known, for_fusion)
    # Small expressions first: others may be made of them.
    for extent in sorted(expressions, key=lambda extent: len(str(extent))):
        namer.name(extent)
    if not namer.named:
        return func, tuple(range(len(func.params)))
    renamed = namer.renamed(func)
    used = set(_variables(renamed.body))
    used.update(v for param in renamed.params if tirx.is_buffer_var(param) for v in _variables(list(param.ty.shape)))
    places = enumerate(renamed.params)
    kept = tuple(place for place, param in places if tirx.is_buffer_var(param) or param in used)
    params = [renamed.params[place] for place in kept]
    return tirx.PrimFunc(params, renamed.body, renamed.ret_type, renamed.attrs, renamed.span), kept


class _Namer:
    """Puts names in the place of expressions.

    Parameters
    ----------
    known : set of variables
        Extents that are variables already.
    every : bool
        Whether what can be computed of other names gets one.
    """

    def __init__(self, known: set[Any], every: bool) -> None:
        self._every = every
        self.named: dict[Any, Any] = {}  # what expressions are, by their structure
        self._known = known
        self._analyzer = tvm.sym.Analyzer()
        self._depth = 0
        self._is_sum = False  # whether a name less a number was put into the expression

    def name(self, extent: Any) -> None:
        """Name an extent, but for a number that is added to it; one of known names is left."""
        given, renamed = extent, self.renamed(extent)
        if isinstance(renamed, tvm.ir.Var):
            return
        extent = self._analyzer.simplify(renamed)
        if not self._every and all(variable in self._known for variable in _variables(extent)):
            return
        core, added = _apart(extent)
        variable = tvm.ir.Var("extent", extent.ty)
        self._known.add(variable)
        for form in (given, renamed, extent):
            self.named[tvm_ffi.StructuralKey(form)] = variable
        if added and not isinstance(core, tvm.ir.Var):
            self.named.setdefault(tvm_ffi.StructuralKey(core), variable - tirx.const(added, str(extent.ty.dtype)))

    def renamed(self, node: Any) -> Any:
        """Give an expression or a kernel with the names that there are."""
        return tvm_ffi.structural_mutate(node, [(_ARITHMETIC, self._expression)]) if self.named else node

    def _expression(self, expression: Any, mutator: Any) -> Any:
        """Put a name in the place of the largest expression that has one."""
        found = self._name_of(expression)
        if found is not None:
            return found
        self._depth += 1
        changed = mutator.default_mutate(expression)
        self._depth -= 1
        if not changed.same_as(expression):
            found = self._name_of(changed)
            if found is not None:
                changed = found
            elif self._is_sum and not self._depth:
                changed = self._analyzer.simplify(changed)
        if not self._depth:
            self._is_sum = False
        return changed

    def _name_of(self, expression: Any) -> Any:
        found = self.named.get(tvm_ffi.StructuralKey(expression))
        self._is_sum |= found is not None and not isinstance(found, tvm.ir.Var)
        return found


@mutator
class _Caller(PyExprMutator):
    """Calls kernels with names.

    Parameters
    ----------
    mod : tvm.IRModule
        Without the kernels that were renamed.
    named : mapping
        These, and which of their parameters they still take.
    """

    def __init__(self, mod: tvm.IRModule, named: Mapping[Any, tuple[tirx.PrimFunc, tuple[int, ...]]]) -> None:
        super().__init__(mod)
        self._named = named
        self._added: dict[Any, Any] = {}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Call the kernel that takes names, without the numbers that it does not take."""
        if not _is_call_tir(call) or call.args[0] not in self._named:
            return super().visit_call_(call)
        variable = call.args[0]
        func, kept = self._named[variable]
        if variable not in self._added:
            # Equal kernels become one here.
            self._added[variable] = self.builder_.add_func(func, str(variable.name_hint).rstrip("0123456789"))
        given = call.args[1].fields
        arguments = relax.Tuple([self.visit_expr(given[place]) for place in kept if place < len(given)])
        function = self._added[variable]
        return relax.Call(call.op, [function, arguments, *call.args[2:]], call.attrs, call.ty_args, call.span)


def _apart(extent: Any) -> tuple[Any, int]:
    """Divide a sum into what is open, and a number."""
    if isinstance(extent, prim.Add | prim.Sub) and isinstance(extent.b, tirx.IntImm):
        return extent.a, int(extent.b) if isinstance(extent, prim.Add) else -int(extent.b)
    return extent, 0


def _has_expressions(func: tirx.PrimFunc) -> bool:
    extents = (extent for param in func.params if tirx.is_buffer_var(param) for extent in param.ty.shape)
    return any(not isinstance(extent, tvm.ir.Var | tirx.IntImm) for extent in extents)


def _is_written(func: tirx.PrimFunc) -> bool:
    """Whether a kernel is as it should be, and named by who wrote it."""
    return "tirx.is_scheduled" in (func.attrs or {})


def _variables(node: Any) -> list[Any]:
    """List the numbers that an expression or a kernel's body reads."""
    found: dict[Any, None] = {}
    tvm_ffi.structural_walk(node, (tvm.ir.Var, lambda variable: found.setdefault(variable)))
    return [variable for variable in found if isinstance(variable.ty, tvm.ir.PrimType)]


def _is_call_tir(call: Any) -> bool:
    return isinstance(call, relax.Call) and getattr(call.op, "name", "") == "relax.call_tir"


def _called_by_call_tir_alone(mod: tvm.IRModule) -> set[Any]:
    """List the kernels that no other operator calls, which would tell them numbers in another way."""
    called: set[Any] = set()
    otherwise: set[Any] = set()

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call):
            for function in (expr.op, *expr.args):
                if isinstance(function, tvm.ir.GlobalVar):
                    (called if _is_call_tir(expr) else otherwise).add(function)

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    return called - otherwise


_ARITHMETIC = (prim.Add, prim.Sub, prim.Mul, prim.FloorDiv, prim.FloorMod, prim.Min, prim.Max, prim.Div, prim.Mod)
