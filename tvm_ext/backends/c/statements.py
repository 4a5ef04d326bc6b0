"""Calls that are statements of a kernel: masked stores, fetches, stores past the caches; declarations nothing uses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import tvm
from tvm.ir.prim import expr as prim

from tvm_ext.backends.c.constants import folded
from tvm_ext.backends.c.expressions import Expressions, type_of_buffer
from tvm_ext.backends.c.masks import type_of
from tvm_ext.schedules.simd.imported import LOCALITIES, STEP
from tvm_ext.schedules.simd.stream import PREFIX as STREAM
from tvm_ext.schedules.simd.vector import operation

_NAME = re.compile(r"[A-Za-z_]\w*")
_DECLARED = re.compile(r"\s*(?:const )?\w+ \*?(\w+)(?: = (?:[^{}]*|\{0\}))?;$")
"""A declaration of one variable; what its value is computed from has no effects."""


def evaluated(expressions: Expressions, e: Any) -> str | None:
    """Write a call that is a statement; None for what does nothing here."""
    name = operation(e) if isinstance(e, tvm.ir.Call) else ""
    if name == "masked_store":
        buffer, value, index, mask = e.args[0], e.args[1], expressions.plain(e.args[2]), e.args[3]
        kept = expressions.register(buffer, index)
        if kept is not None or type_of_buffer(buffer).lanes > 1:
            kind = type_of(value)
            place = kept or expressions.load(buffer, index, kind)
            chosen = ", ".join((expressions.mask(mask, kind.bits), expressions.text(value), place))
            return f"{place} = {expressions.helpers.select(kind)}({chosen});"
        if not isinstance(index, prim.Ramp) or folded(index.stride, expressions.values) != 1:
            raise expressions.refuse("a masked store to scattered elements")
        kind = type_of(value)
        kind = kind.of("uint8") if kind.element == "bool" else kind
        pointer, lanes = expressions.pointer(buffer, index.base), expressions.mask(mask, kind.bits)
        return f"{expressions.helpers.masked(kind, True)}({pointer}, {lanes}, {expressions.text(value)});"
    if name == "call_extern":
        called = str(e.args[0].value)
        if called in LOCALITIES:
            return f"__builtin_prefetch({expressions.text(e.args[1])}, 0, {LOCALITIES[called]});"
        if called == STEP:
            return None
        if called.startswith(STREAM):
            function = expressions.helpers.stream(type_of(e.args[2]))
            return f"{function}({expressions.text(e.args[1])}, {expressions.text(e.args[2])});"
    if name == "call_llvm_intrin":
        called = str(tvm.target.codegen.llvm_get_intrinsic_name(int(e.args[0].value)))
        if called == "llvm.x86.sse.sfence":
            return "FENCE();"
    if not isinstance(e, tvm.ir.Call) and not isinstance(e, tvm.ir.TensorLoad):
        return None
    raise expressions.refuse(f"a call of {name or type(e).__name__}")


def without_unused(lines: Sequence[str], parameters: Sequence[str]) -> list[str]:
    """Leave out declarations of what is used nowhere, as of indices that became numbers where loops are written out.

    Parameters
    ----------
    lines : sequence of str
        The body of a function.
    parameters : sequence of str
        Of the function; those that are not used are said to be so.
    """
    kept = list(lines)
    while True:
        uses = Counter(name for line in kept for name in _NAME.findall(line))
        used = [line for line in kept if (found := _DECLARED.match(line)) is None or uses[found[1]] > 1]
        if len(used) == len(kept):
            return [f"  (void){name};\n" for name in parameters if not uses[name]] + used
        kept = used
