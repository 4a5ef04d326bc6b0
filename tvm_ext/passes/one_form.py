"""Write extents that are equal in one form, which TVM's fusion compares by how they are written.

before: ``lv: [n, 2 * h]``, ``relu(lv): [n, h * 2]``
after:  ``lv: [n, h * 2]``, ``relu(lv): [n, h * 2]``

Importers, inference of types and kernels' own results write products and sums in different orders. ``FuseTIR`` takes
two forms for two extents, or refuses to fuse them at all.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx


def one_form() -> tvm.transform.Pass:
    """Make the pass, for Relax functions and the calls of kernels in them; kernels are left as they are."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.OneForm")
    def _one_form(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod
        for variable, function in mod.functions_items():
            if isinstance(function, relax.Function):
                written = in_one_form(function)
                if not written.same_as(function):
                    updated = mod.clone() if updated is mod else updated
                    updated.update_func(variable, written)
        return updated

    return _one_form


def in_one_form(function: relax.Function) -> relax.Function:
    """Write the equal extents of a function in one form; gives the same object where they are."""
    forms = _Forms()

    def written(shape: Any, mutator: Any) -> Any:
        values = [forms.of(value) for value in shape.values]
        same = all(value.same_as(given) for value, given in zip(values, shape.values, strict=True))
        return shape if same else relax.ShapeExpr(values, shape.span)

    return tvm_ffi.structural_mutate(function, [(relax.ShapeExpr, written)])


class _Forms:
    """The forms of a function's extents."""

    def __init__(self) -> None:
        self._analyzer = tvm.sym.Analyzer()
        self._found: dict[Any, Any] = {}

    def of(self, extent: Any) -> Any:
        """Give the form of an extent; the same object where it has that form."""
        if isinstance(extent, tvm.ir.Var | tirx.IntImm):
            return extent
        key = tvm_ffi.StructuralKey(extent)
        if key not in self._found:
            simple = self._analyzer.simplify(extent)
            simple_key = tvm_ffi.StructuralKey(simple)
            if simple_key not in self._found:
                others = {id(form): form for form in self._found.values()}.values()
                equal = (form for form in others if self._analyzer.can_prove_equal(form, simple))
                self._found[simple_key] = next(equal, simple)
            self._found[key] = self._found[simple_key]
        form = self._found[key]
        return extent if tvm_ffi.StructuralKey(form) == key else form
