"""Which nodes of a model a Relax variable comes from: words for them, carried by the variable's span.

TVM's passes copy the span of a variable wherever they change one, and nothing compares spans, so that a module with
words is equal to one without. What a pass emits anew has none: rewriters of this package emit with an
:class:`OriginBuilder`, and :func:`all_origins` gives helpers the words of what they help.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import SequentialSpan, SourceName, Span

from tvm_ext.relax_utils import substitute

_QUANTIZING = ("QuantizeLinear node", "DequantizeLinear node")


def span_of(words: Sequence[str]) -> Any:
    """Make a span of words for nodes; None of no words."""
    spans = [Span(SourceName(word), 0, 0, 0, 0) for word in dict.fromkeys(words)]
    return SequentialSpan(spans) if len(spans) > 1 else spans[0] if spans else None


def words_of(variable: Any) -> tuple[str, ...]:
    """Return the words for the nodes that a variable comes from, as its span has them."""
    span = getattr(variable, "span", None)
    if span is None:
        return ()
    return tuple(str(part.source_name.name) for part in (span.spans if isinstance(span, SequentialSpan) else [span]))


def emit_from(
    builder: relax.BlockBuilder, value: Any, span: Any, name_hint: str = "", leaves: bool = False
) -> relax.Var:
    """Bind an expression to a variable with a span; one that ``leaves`` a dataflow block can be read behind it."""
    span = span or getattr(value, "span", None)  # another name for a variable
    if span is None:
        return builder.emit_output(value, name_hint) if leaves else builder.emit(value, name_hint)
    value = builder.normalize(relax.Tuple(list(value)) if isinstance(value, list | tuple) else value)
    inside = builder.current_block_is_dataflow() and not leaves
    kind = relax.DataflowVar if inside else relax.Var
    variable = kind(builder.get_unique_name(name_hint or ("lv" if inside else "gv")), value.ty, span)
    builder.emit_normalized(relax.VarBinding(variable, value))
    return variable


class OriginBuilder(relax.BlockBuilder):
    """A block builder whose variables come from the nodes that are being converted or rewritten.

    Attributes
    ----------
    emitted : int
        How many variables it has bound.
    """

    span: Any = None
    emitted: int = 0

    def emit(self, expr: Any, name_hint: str = "") -> relax.Var:
        """Bind an expression to a variable that comes from the present nodes."""
        self.emitted += 1
        return emit_from(super(), expr, self.span, name_hint)

    def emit_output(self, output: Any, name_hint: str = "") -> relax.Var:
        """Bind an expression to a variable that leaves the block and comes from the present nodes."""
        self.emitted += 1
        return emit_from(super(), output, self.span, name_hint, leaves=True)

    @contextmanager
    def coming_from(self, span: Any) -> Iterator[None]:
        """Let what is emitted inside come from what a span says, or from nothing for None."""
        before, self.span = self.span, span
        try:
            yield
        finally:
            self.span = before


def bindings_of(body: Any) -> Iterator[Any]:
    """Yield the bindings of an expression in order, those in branches of ``If`` right behind it."""
    for block in getattr(body, "blocks", ()):
        for binding in block.bindings:
            yield binding
            for branch in ("true_branch", "false_branch"):
                yield from bindings_of(getattr(getattr(binding, "value", None), branch, None))


def all_origins(function: relax.Function) -> dict[Any, tuple[str, ...]]:
    """List the words of every variable that a function binds.

    A variable without words of its own is taken for a helper of the first one that reads it, and what is behind the
    last one with words for a part of what it reads.
    """
    bindings = list(bindings_of(function.body))
    found = {binding.var: words_of(binding.var) for binding in bindings}
    reads = {binding.var: [other for other in variables_of(binding.value) if other in found] for binding in bindings}
    first_reader: dict[Any, Any] = {}
    for binding in bindings:
        for other in reads[binding.var]:
            first_reader.setdefault(other, binding.var)
    for binding in reversed(bindings):
        if not found[binding.var] and binding.var in first_reader:
            found[binding.var] = found[first_reader[binding.var]]
    for binding in bindings:
        if not found[binding.var]:
            found[binding.var] = next((found[other] for other in reads[binding.var] if found[other]), ())
    return found


def words_between(last: Any, read: Iterable[Any], values: Mapping[Any, Any]) -> tuple[str, ...]:
    """List words for what a kernel computes that gives ``last`` and reads ``read``, in the order of the computation.

    Parameters
    ----------
    last : Var
    read : iterable of Expr
        Where the way back ends, as at parameters.
    values : mapping
        What variables are bound to.
    """
    seen = {expr for expr in read if isinstance(expr, tvm.ir.Var)}
    words: list[str] = []

    def visit(variable: Any) -> None:
        if variable not in seen and variable in values:
            seen.add(variable)
            for other in variables_of(values[variable]):
                visit(other)
            words.extend(words_of(variable))

    visit(last)
    return tuple(dict.fromkeys(words))


def with_origins(function: relax.Function, words: Mapping[Any, Sequence[str]]) -> relax.Function:
    """Give variables that a function binds other words."""
    new = {
        variable: type(variable)(variable.name, variable.ty, span_of(own))
        for variable, own in words.items()
        if tuple(own) != words_of(variable)
    }
    return substitute(function, new) if new else function


def named(function: relax.Function) -> relax.Function:
    """Let the variables of a function that knows no nodes come from what they are called, as no pass keeps names."""
    variables = [binding.var for binding in bindings_of(function.body)]
    if any(words_of(variable) for variable in variables):
        return function
    return with_origins(function, {variable: (variable.name,) for variable in variables})


def calls_of_kernels(function: relax.Function) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the calls of kernels in a function, before or behind ``CallTIRRewrite``: the kernel, and the words."""
    readers: dict[Any, list[str]] = {}
    bindings = list(bindings_of(function.body))
    for binding in bindings:
        if isinstance(binding.value, tvm.ir.TupleGetItem):
            readers.setdefault(binding.value.tuple_value, []).extend(words_of(binding.var))
    for binding in bindings:
        value = binding.value
        if isinstance(value, relax.Call):
            kernel = next((part for part in (value.op, *value.args[:1]) if isinstance(part, tvm.ir.GlobalVar)), None)
            if kernel is not None:
                yield kernel.name_hint, words_of(binding.var) or tuple(dict.fromkeys(readers.get(binding.var, ())))


def nodes_of_kernels(mod: tvm.IRModule) -> dict[str, tuple[str, ...]]:
    """List words for the nodes that each kernel computes, all its calls together."""
    found: dict[str, dict[str, None]] = {}
    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            for kernel, words in calls_of_kernels(function):
                found.setdefault(kernel, {}).update(dict.fromkeys(words))
    return {kernel: tuple(words) for kernel, words in found.items()}


def telling(nodes: Sequence[str]) -> list[str]:
    """Leave out nodes that only quantise, where there are others."""
    return [word for word in nodes if not word.startswith(_QUANTIZING)] or list(nodes)


def with_nodes(kernel: str, nodes: Sequence[str], shown: int = 3) -> str:
    """Spell a kernel with the first of the nodes that it computes, as a message has it."""
    nodes = telling(nodes)
    if not nodes:
        return kernel
    more = f" and {len(nodes) - shown} more nodes" if len(nodes) > shown else ""
    return f"{kernel} ({', '.join(nodes[:shown])}{more})"


def variables_of(value: Any) -> list[Any]:
    """List the variables in an expression."""
    found: list[Any] = []
    tvm_ffi.structural_walk(value, [(tvm.ir.Var, found.append)])
    return found
