"""Keep the words for the nodes of a model (:mod:`tvm_ext.graph.origins`) where TVM emits calls of kernels anew.

Grouping kernels binds the call of a group to a new variable, which gets the words of all that is computed in the group
(before: ``a = conv(x) [Conv]; b = relu(a) [Relu]``, after: ``b = fused_conv_relu(x) [Conv, Relu]``). What a call
computes is found by numbering values: equal kernels of equal operands are equal values, whatever function they are in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from tvm_ext.graph.origins import all_origins, bindings_of, with_origins, words_of


def traced_grouping(grouping: tvm.transform.Pass) -> tvm.transform.Pass:
    """Make a pass that groups kernels and keeps the words for them.

    Parameters
    ----------
    grouping : Pass
        Makes functions with the attribute ``Primitive`` of groups of kernels, such as ``FuseOps``.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.TracedGrouping")
    def _traced(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        grouped = grouping(mod)
        changed = {}
        known = {variable.name_hint: func for variable, func in mod.functions_items()}
        groups = {
            variable.name_hint: func
            for variable, func in grouped.functions_items()
            if isinstance(func, relax.Function) and _is_group(func)
        }
        for variable, func in grouped.functions_items():
            before = known.get(variable.name_hint)
            if not isinstance(func, relax.Function) or not isinstance(before, relax.Function) or _is_group(func):
                continue
            traced = with_origins(func, _words_of_groups(before, func, groups))
            if not traced.same_as(func):
                changed[variable] = traced
        if not changed:
            return grouped
        updated = tvm.IRModule(grouped.functions, attrs=grouped.attrs, global_infos=grouped.global_infos)
        for variable, func in changed.items():
            updated.update_func(variable, func)
        return updated

    return _traced


def with_kept_origins(renewing: tvm.transform.Pass) -> tvm.transform.Pass:
    """Make a pass that keeps words where TVM makes variables anew and leaves calls and branches in their order.

    before: ``b = If(c, ...) [If]; i = b[0]; y = i``, after: ``b = If(c, ...) [If]; y = b[0]``

    Parameters
    ----------
    renewing : Pass
        Such as ``ConvertToDataflow``, which turns variables into those of dataflow blocks.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.KeptOrigins")
    def _kept(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        renewed = renewing(mod)
        updated = tvm.IRModule(renewed.functions, attrs=renewed.attrs, global_infos=renewed.global_infos)
        for variable, func in renewed.functions_items():
            if isinstance(func, relax.Function):
                pairs = zip(_computing(mod[variable.name_hint]), _computing(func), strict=True)
                updated.update_func(variable, with_origins(func, {new.var: words_of(old.var) for old, new in pairs}))
        return updated

    return _kept


def lowered_origins() -> tvm.transform.Pass:
    """Make a pass that gives calls of kernels the words of their results, right behind ``CallTIRRewrite``.

    before: ``f(x, alloc); y [Conv] = alloc``
    after:  ``f(x, alloc) [Conv]; y [Conv] = alloc``
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.LoweredOrigins")
    def _lowered(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        updated = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        for variable, func in mod.functions_items():
            if isinstance(func, relax.Function):
                words = {}
                call = None
                for binding in bindings_of(func.body):
                    if isinstance(binding.value, relax.Call):
                        call = binding.var if isinstance(binding.value.op, tvm.ir.GlobalVar) else None
                    elif call is not None:
                        words[call], call = words_of(binding.var), None
                updated.update_func(variable, with_origins(func, words))
        return updated

    return _lowered


def _computing(func: relax.Function) -> list[Any]:
    """Return the bindings of calls and branches; others may go when a function is put in order, as ``y = x`` does."""
    return [binding for binding in bindings_of(func.body) if isinstance(binding.value, (relax.Call, relax.If))]


def _is_group(func: relax.Function) -> bool:
    return bool(func.attrs) and "Primitive" in func.attrs


def _words_of_groups(before: Any, after: Any, groups: dict[str, Any]) -> dict[Any, tuple[str, ...]]:
    """Find the words of each call of a kernel or of a group in a function that was grouped."""
    words: dict[int, dict[str, None]] = {}
    origins = all_origins(before)
    numbers = _Numbers({})
    for variable, (number, _) in numbers.of(before).items():
        words.setdefault(number, {}).update(dict.fromkeys(origins[variable]))
    found = {}
    for variable, (_, computed) in _Numbers(groups, numbers.table).of(after).items():
        own = [word for number in computed for word in words.get(number, ())]
        if own:
            found[variable] = tuple(dict.fromkeys(own))
    return found


class _Numbers:
    """Numbers the values of a function, those inside groups that it calls as if they stood in it.

    Parameters
    ----------
    groups : dict of str to relax.Function
    table : dict, optional
        Numbers that are known.
    """

    def __init__(self, groups: dict[str, Any], table: dict[Any, int] | None = None) -> None:
        self._groups = groups
        self.table: dict[Any, int] = {} if table is None else table
        self._fields: dict[int, tuple[int, ...]] = {}  # of tuples
        self._held: list[Any] = []  # what is known by its address must not be let go

    def of(self, function: Any) -> dict[Any, tuple[int, tuple[int, ...]]]:
        """Return for each variable its number, and the numbers of all values that its binding computes."""
        values = {parameter: self._number(("parameter", place)) for place, parameter in enumerate(function.params)}
        found: dict[Any, tuple[int, tuple[int, ...]]] = {}
        for binding in bindings_of(function.body):
            computed: list[int] = []
            values[binding.var] = self._value(binding.value, values, computed)
            found[binding.var] = (values[binding.var], tuple(computed))
        return found

    def _number(self, key: Any) -> int:
        return self.table.setdefault(key, len(self.table))

    def _value(self, value: Any, values: dict[Any, int], computed: list[int]) -> int:
        if isinstance(value, relax.Call):
            operands = tuple(self._value(argument, values, computed) for argument in value.args)
            name = str(getattr(value.op, "name_hint", None) or getattr(value.op, "name", ""))
            group = self._groups.get(name) if isinstance(value.op, tvm.ir.GlobalVar) else None
            if group is not None:
                return self._in_group(group, operands, computed)
            number = self._number(("call", name, operands, str(value.attrs) if value.attrs else ""))
            computed.append(number)
            return number
        if isinstance(value, tvm.ir.Tuple):
            fields = tuple(self._value(field, values, computed) for field in value.fields)
            number = self._number(("tuple", fields))
            self._fields[number] = fields
            return number
        if isinstance(value, tvm.ir.TupleGetItem):
            whole = self._value(value.tuple_value, values, computed)
            index = int(value.index)
            return self._fields[whole][index] if whole in self._fields else self._number(("item", whole, index))
        if isinstance(value, tvm.ir.GlobalVar):
            return self._number(("function", value.name_hint))
        if isinstance(value, tvm.ir.Var) and value in values:
            return values[value]
        if isinstance(value, relax.ShapeExpr):
            return self._number(("shape", str(value)))
        self._held.append(value)
        return self._number(("other", value.__chandle__()))

    def _in_group(self, group: Any, operands: Sequence[int], computed: list[int]) -> int:
        values = dict(zip(group.params, operands, strict=True))
        for binding in bindings_of(group.body):
            values[binding.var] = self._value(binding.value, values, computed)
        return self._value(group.body.body, values, computed)
