"""Programs with complex numbers inside, as programs of their real and imaginary parts.

TVM has no complex types. Rotary embeddings (``torch.view_as_complex``) and spectra (``torch.stft``, ``torch.fft``) take
them only between real tensors, so each operator on them is traced once as operators on pairs of real tensors.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, OutputSpec, TensorArgument
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from tvm_ext.frontend.torch.fourier import TRANSFORMS, Constant

try:  # not a part of PyTorch that it promises to keep
    from torch._subclasses.complex_tensor import ComplexTensor
except ImportError:  # pragma: no cover - an older PyTorch
    ComplexTensor = None

Pair = tuple[Node, Node]
aten = torch.ops.aten


_ASSERTIONS = (aten._assert_tensor_metadata.default,)
"""What holds of each exported program by its types."""

BILINEAR = (aten.mul.Tensor, aten.mm.default, aten.bmm.default)


class ComplexError(Exception):
    """An operator on complex numbers that cannot be written with real ones.

    Attributes
    ----------
    node : torch.fx.Node
    reason : str
    """

    def __init__(self, node: Node, reason: str) -> None:
        super().__init__(reason)
        self.node, self.reason = node, reason


@dataclass(frozen=True)
class RealParts:
    """What is left of a program when its complex tensors are pairs of real ones."""

    graph: Graph
    signature: ExportGraphSignature
    constants: dict[str, Any]


def has_complex_numbers(program: Any) -> bool:
    """Say whether any tensor of a program is complex."""
    return any(_is_complex(node.meta.get("val")) for node in program.graph.nodes)


def in_real_numbers(program: ExportedProgram, table: dict[Any, Callable[..., Any]]) -> ExportedProgram:
    """Write complex tensors as pairs of real ones.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        Of core operators; not changed.
    table : dict
        Decompositions, for the operators on parts.

    Raises
    ------
    ComplexError
        If an input or output is complex, or an operator on complex numbers has no form in real ones.
    """
    found = real_parts(program, table)
    return ExportedProgram(
        root=program.graph_module,
        graph=found.graph,
        graph_signature=found.signature,
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=found.constants,
    )


def real_parts(program: Any, table: Mapping[Any, Callable[..., Any]]) -> RealParts:
    """Write complex tensors as pairs of real ones; see :func:`in_real_numbers`.

    Parameters
    ----------
    program
        Has ``graph``, ``graph_signature``, ``state_dict`` and ``constants`` as an exported program has them.
    table : mapping
        Decompositions, for the operators on parts.

    Raises
    ------
    ComplexError
        See :func:`in_real_numbers`.
    """
    if ComplexTensor is None:
        node = next(node for node in program.graph.nodes if _is_complex(node.meta.get("val")))
        raise ComplexError(node, "this PyTorch has no complex tensors made of real ones; take 2.10 or newer")
    return _Rewriter(program, table).run()


def _is_complex(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) and leaf.dtype.is_complex for leaf in pytree.tree_leaves(value))


class _Rewriter:
    """Copies a graph; each node becomes nodes of the new graph, one for each real tensor in what it gives."""

    def __init__(self, program: Any, table: Mapping[Any, Callable[..., Any]]) -> None:
        self.program, self.table = program, dict(table)
        self.graph = Graph()
        self.values: dict[Node, Any] = {}  # a node, a pair of them, or a list of these
        self.constants = dict(program.constants)
        self.specs: dict[str, InputSpec] = {}  # by names of placeholders
        values = (node.meta.get("val") for node in program.graph.nodes)
        self.fake_mode = next(value.fake_mode for value in values if isinstance(value, FakeTensor))

    def run(self) -> RealParts:
        """Give the program anew."""
        given = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self._add_input(node, given[node.name])
            elif node.op == "call_function" and node.target in _ASSERTIONS and not node.users:
                continue
            elif node.op == "call_function" and self._touches_complex(node):
                self._rewrite(node)
            else:
                if node.op == "output":
                    self._check_outputs(node)
                self.values[node] = self.graph.node_copy(node, self.values.__getitem__)
        inputs = [self.specs[node.name] for node in self.graph.find_nodes(op="placeholder")]
        return RealParts(self.graph, ExportGraphSignature(inputs, self._output_specs()), self.constants)

    def _touches_complex(self, node: Node) -> bool:
        return any(_is_complex(each.meta.get("val")) for each in (node, *node.all_input_nodes))

    def _check_outputs(self, node: Node) -> None:
        for returned in pytree.tree_leaves(node.args[0]):
            if isinstance(returned, Node) and _is_complex(returned.meta.get("val")):
                raise ComplexError(returned, "it is returned; return its parts (torch.view_as_real)")

    def _output_specs(self) -> list[OutputSpec]:
        """Give the names that the nodes which are returned have now."""
        (returned,) = self.graph.output_node().args
        return [
            replace(spec, arg=TensorArgument(node.name)) if isinstance(spec.arg, TensorArgument) else spec
            for spec, node in zip(self.program.graph_signature.output_specs, returned, strict=True)
        ]

    def _add_input(self, node: Node, spec: InputSpec) -> None:
        if not _is_complex(node.meta.get("val")):
            self.values[node] = copied = self.graph.node_copy(node)
            copied.name = node.name  # which a copy does not keep if Python has something of that name, as 'input'
            self.specs[node.name] = spec
            return
        if spec.kind == InputKind.USER_INPUT:
            raise ComplexError(node, "it is an input; take its parts (torch.view_as_real)")
        stored = self.constants if spec.target in self.constants else self.program.state_dict
        number = stored[spec.target].detach()
        self.constants.pop(spec.target, None)
        parts = (number.real.contiguous(), number.imag.contiguous())
        self.values[node] = tuple(
            self._add_constant(f"{node.name}_{name}", part) for name, part in zip(("real", "imag"), parts, strict=True)
        )

    def _add_constant(self, name: str, value: torch.Tensor) -> Node:
        """Add an input for a constant, before all others."""
        with self.graph.inserting_before(None):
            node = self.graph.placeholder(name)
        node.target = node.name  # which is unique
        node.meta["val"] = self.fake_mode.from_tensor(value, static_shapes=True)
        self.constants[node.name] = value
        self.specs[node.name] = InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), node.name)
        return node

    def _rewrite(self, node: Node) -> None:
        if node.target is operator.getitem:
            self.values[node] = self.values[node.args[0]][node.args[1]]
            return
        leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
        own = [self.values[leaf] if isinstance(leaf, Node) else leaf for leaf in leaves]
        given = [part for value in own for part in _nodes(value)]

        constants: list[Node] = []

        def add(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
            with unset_fake_temporarily():
                matrix = torch.tensor(values, dtype=dtype)
            constants.append(self._add_constant(f"{node.name}_matrix", matrix))
            return constants[-1].meta["val"]

        def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
            parts = iter(tensors)
            args, kwargs = pytree.tree_unflatten([_taken(value, parts) for value in own], spec)
            results = _result(node, args, kwargs, lambda *_: next(parts))
            flat = results if isinstance(results, list | tuple) else [results]
            return [part for result in flat for part in _parts(result)]

        try:
            if node.target in TRANSFORMS:  # once without being traced, for its constants
                args, rest = pytree.tree_map_only(Node, lambda given: given.meta["val"], (own[0], node.args[1:]))
                with self.fake_mode:  # else what is made of open extents would fix them to the example's
                    TRANSFORMS[node.target](add, *(args if isinstance(args, tuple) else (args,)), *rest)
                given += constants
            with self.fake_mode, torch.no_grad():
                traced = make_fx(function, decomposition_table=self.table)(*map(self._example, given))
        except Exception as error:  # what a decomposition raises
            reason = str(error).strip().splitlines()
            raise ComplexError(node, reason[0] if reason else type(error).__name__) from error
        if any(_is_complex(each.meta.get("val")) for each in traced.graph.nodes):
            raise ComplexError(node, "PyTorch does not write it with real ones; write it with those itself")
        self.values[node] = self._assembled(node.meta["val"], iter(self._inlined(traced, given, node)))

    def _example(self, node: Node) -> Any:
        value = node.meta["val"]
        is_real_tensor = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
        return self.fake_mode.from_tensor(value, static_shapes=True) if is_real_tensor else value

    def _inlined(self, traced: torch.fx.GraphModule, given: list[Node], origin: Node) -> list[Node]:
        traced.graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
        places = iter(given)
        known: dict[Node, Node] = {}
        for node in traced.graph.nodes:
            if node.op == "placeholder":
                known[node] = next(places)
            elif node.op == "get_attr":
                known[node] = self._add_constant(f"{origin.name}{node.target}", getattr(traced, node.target))
            elif node.target in (aten.alias.default, aten.detach.default):
                known[node] = known[node.args[0]]
            elif node.op == "output":
                return [known[leaf] for leaf in pytree.tree_leaves(node.args[0])]
            else:
                known[node] = self.graph.node_copy(node, known.__getitem__)
                known[node].meta["stack_trace"] = origin.meta.get("stack_trace")
        raise AssertionError("a graph ends with its output")

    def _assembled(self, value: Any, parts: Iterator[Node]) -> Any:
        if isinstance(value, list | tuple):
            return [self._assembled(each, parts) for each in value]
        return (next(parts), next(parts)) if value.dtype.is_complex else next(parts)


def _nodes(value: Any) -> list[Node]:
    if isinstance(value, list | tuple):
        return [node for each in value for node in _nodes(each)]
    return [value] if isinstance(value, Node) else []


def _taken(value: Any, parts: Iterator[torch.Tensor]) -> Any:
    """Take the tensors of a value: one for a node, and a complex one for a pair."""
    if isinstance(value, tuple):
        return ComplexTensor(next(parts), next(parts))
    if isinstance(value, list):
        return [_taken(each, parts) for each in value]
    return next(parts) if isinstance(value, Node) else value


def _parts(result: torch.Tensor) -> list[torch.Tensor]:
    return [result.re, result.im] if isinstance(result, ComplexTensor) else [result]


def _complex(value: torch.Tensor, imaginary: torch.Tensor | None = None) -> torch.Tensor:
    if isinstance(value, ComplexTensor):
        return value
    return ComplexTensor(value, torch.zeros_like(value) if imaginary is None else imaginary)


def _power(base: torch.Tensor, exponent: float) -> torch.Tensor:
    """Raise to a real power: small whole ones as products, others by length and angle."""
    if exponent == int(exponent) and 0 < abs(exponent) <= 8:
        result = base
        for _ in range(int(abs(exponent)) - 1):
            result = result * base
        return result if exponent > 0 else result.reciprocal()
    length, angle = torch.hypot(base.re, base.im) ** exponent, torch.atan2(base.im, base.re) * exponent
    return ComplexTensor(length * angle.cos(), length * angle.sin())


def _of_number(number: complex, dtype: torch.dtype) -> torch.Tensor:
    real = dtype.to_real() if dtype.is_complex else dtype
    return ComplexTensor(*(torch.full((), part, dtype=real) for part in (number.real, number.imag)))


def _result(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], constant: Constant) -> Any:
    """Compute what a node gives, complex tensors being of the class that computes on parts."""
    target, expected = node.target, node.meta["val"]
    if target in TRANSFORMS:
        result = TRANSFORMS[target](constant, *_parts(args[0]), *args[1:])
        return ComplexTensor(*result) if isinstance(result, tuple) else result
    if target == aten.view_as_complex.default:
        return ComplexTensor(args[0].select(-1, 0), args[0].select(-1, 1))
    if target == aten.complex.default:
        return ComplexTensor(*torch.broadcast_tensors(*args))
    if target == aten.polar.default:
        length, angle = torch.broadcast_tensors(*args)
        return ComplexTensor(length * angle.cos(), length * angle.sin())
    if target == aten.pow.Tensor_Scalar and not isinstance(args[1], complex):
        return _power(args[0], args[1])
    args = pytree.tree_map_only(complex, lambda number: _of_number(number, expected.dtype), args)
    if target in BILINEAR and sum(isinstance(arg, ComplexTensor) for arg in args[:2]) == 1:
        # PyTorch makes the real one complex, and multiplies by zeros.
        left, right = (_parts(arg) if isinstance(arg, torch.Tensor) else [arg] for arg in args[:2])
        if all(isinstance(arg, torch.Tensor | float | int) for arg in args[:2]):
            return ComplexTensor(*(target(a, b, *args[2:]) for a in left for b in right))
    if isinstance(expected, torch.Tensor) and expected.dtype.is_complex:
        real = expected.dtype.to_real()
        if target == aten._to_copy.default and not isinstance(args[0], ComplexTensor):
            return _complex(args[0].to(real))
        if target == aten.full.default:
            parts = _parts(args[1]) if isinstance(args[1], torch.Tensor) else [torch.full((), args[1], dtype=real)]
            return _complex(*[part.expand(args[0]) for part in parts])
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not any(isinstance(leaf, ComplexTensor) for leaf in tensors):  # with a complex number
            args = tuple(_complex(arg.to(real)) if isinstance(arg, torch.Tensor) else arg for arg in args)
        result = target(*args, **kwargs)
        return _complex(result)
    return target(*args, **kwargs)
