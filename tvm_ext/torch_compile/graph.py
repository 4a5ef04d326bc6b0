"""A traced graph as compiled code: with its weights as constants where they stay the same, as arguments where not."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.fx import GraphModule

from tvm_ext.artifact.compiled_model import CompiledModel
from tvm_ext.compiler import compile as compile_model
from tvm_ext.errors import (
    CompileError,
    InputError,
    ModelError,
    PerformanceWarning,
    UnsupportedOperatorError,
    warn,
)
from tvm_ext.inputs import check_values
from tvm_ext.torch_compile.modes import outside_of_tracing
from tvm_ext.torch_compile.options import BackendOptions
from tvm_ext.torch_compile.outputs import Outputs
from tvm_ext.torch_compile.program import Argument, import_graph
from tvm_ext.torch_compile.tensors import of_extent, to_torch, to_tvm
from tvm_ext.torch_compile.weights import Weights, can_be_constant

MOST_COMPILATIONS = 8
"""How often a graph is compiled with other weights inside it, before they become arguments."""

LONGEST_EXTENT = 1 << 31
"""Integers from here on are not passed as the extent of a tensor."""


class CompiledGraph:
    """Computes what a graph does; called with the list of its arguments, as AOTAutograd calls compiled graphs.

    Parameters
    ----------
    module : torch.fx.GraphModule
        In core operators, its nodes with ``val`` in their meta.
    weights : mapping of int to torch.Tensor
        Arguments that are parameters or buffers, as they are now.
    options : BackendOptions
    has_gradients : bool
        Whether there is a graph that computes gradients for this one: then its weights change soon.

    Raises
    ------
    ModelError
        If it cannot be imported, UnsupportedOperatorError among them.
    CompileError
        If no code can be generated for it.
    """

    _boxed_call = True

    def __init__(
        self,
        module: GraphModule,
        weights: Mapping[int, torch.Tensor],
        options: BackendOptions,
        has_gradients: bool = False,
    ) -> None:
        self._module = module
        self._options = options
        self._outputs = Outputs(module)
        if self._outputs.computed is None:
            raise ModelError("it computes no tensor")
        self._places = _packed_weights(module, weights) if options.weights == "constant" else ()
        self._remaining = 1 if has_gradients else MOST_COMPILATIONS
        self._constant: list[tuple[Weights, _Compiled]] = []
        self._general: _Compiled | None = None
        self._left_to_torch = False
        self._lock = threading.Lock()
        if self._places:
            self._compile_constant(weights)
        else:
            self._general = _Compiled(self._outputs.computed, {}, options)

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """Compute the outputs; the list of arguments is empty afterwards."""
        given = list(arguments)
        arguments.clear()  # what is not needed any more may go while this runs
        if self._left_to_torch or _have_tangents(given):
            return self._in_torch(given)
        try:
            results = self._compiled_for(given).run(given)
        except _NoExtentError:
            return self._in_torch(given)
        except InputError:
            if not self._options.fallback:
                raise
            return self._in_torch(given)  # which computes it, or has its own words for what is wrong
        except (CompileError, UnsupportedOperatorError) as error:
            if not self._options.fallback:
                raise
            self._left_to_torch = isinstance(error, UnsupportedOperatorError)  # of weights that are arguments now
            warn(f"torch.compile: PyTorch runs a graph that failed compiled: {error}")
            return self._in_torch(given)
        return self._outputs.assemble(given, results)

    def _in_torch(self, arguments: Sequence[Any]) -> list[Any]:
        return list(self._module(*arguments))

    def _compiled_for(self, arguments: Sequence[Any]) -> _Compiled:
        for weights, compiled in self._constant:
            if weights.are_unchanged(arguments):
                return compiled
        if self._general is not None:
            return self._general
        with self._lock:
            for weights, compiled in self._constant:  # another thread may have compiled it meanwhile
                if weights.are_unchanged(arguments):
                    return compiled
            self._constant = [
                (weights, compiled)
                for weights, compiled in self._constant
                if not weights.are_gone() and not weights.are_of(arguments)
            ]
            changed = {place: arguments[place] for place in self._places}
            if self._remaining and all(map(can_be_constant, changed.values())):
                return self._compile_constant(changed)
            if self._general is None:
                self._general = self._with_weights_as_arguments()
            return self._general

    def _compile_constant(self, weights: Mapping[int, torch.Tensor]) -> _Compiled:
        self._remaining -= 1
        inside = {place: weights[place] for place in self._places}
        noted = Weights(inside)
        compiled = _Compiled(self._outputs.computed, inside, self._options)
        self._constant = [*self._constant, (noted, compiled)]
        return compiled

    def _with_weights_as_arguments(self) -> _Compiled:
        warn(
            "torch.compile: the weights of a graph change from call to call, and it is compiled without them inside; "
            "options={'weights': 'argument'} does so from the start",
            PerformanceWarning,
        )
        return _Compiled(self._outputs.computed, {}, self._options)


class _NoExtentError(Exception):
    """An integer cannot be passed as an extent, as it is negative, or too large; PyTorch computes with it."""


class _Compiled:
    """Compiled code of a graph, with some of its arguments as constants inside."""

    def __init__(self, module: GraphModule, weights: Mapping[int, torch.Tensor], options: BackendOptions) -> None:
        with outside_of_tracing():
            imported = import_graph(module, weights, "torch.compile")
            self._model: CompiledModel = compile_model(imported.model, options.target, **options.pipeline)
        self._arguments = imported.arguments
        self._limited = [
            (argument.index, spec)
            for argument, spec in zip(imported.arguments, self._model.inputs, strict=True)
            if spec.limits is not None
        ]

    def run(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        """Run on the arguments of the graph.

        Raises
        ------
        InputError
            If an index is out of range.
        _NoExtentError
            If an integer is no extent.
        """
        for index, spec in self._limited:
            check_values(spec, arguments[index].detach().numpy())
        given = [_given(argument, arguments[argument.index], self._model.any_element) for argument in self._arguments]
        results = self._model.run_tensors(given)
        return [to_torch(result, shares) for result, shares in zip(results, self._model.shared_results, strict=True)]


def _have_tangents(arguments: Sequence[Any]) -> bool:
    """Say whether derivatives are computed forwards, beside the values: compiled code would lose them."""
    return forward_ad._current_level >= 0 and any(
        isinstance(value, torch.Tensor) and forward_ad.unpack_dual(value).tangent is not None for value in arguments
    )


def _given(argument: Argument, value: Any, any_element: bool) -> Any:
    if not argument.is_extent:
        return to_tvm(value if argument.number_type is None else value.to(argument.number_type), any_element)
    if not 0 <= value < LONGEST_EXTENT:
        raise _NoExtentError
    return of_extent(int(value))


def _packed_weights(module: GraphModule, weights: Mapping[int, torch.Tensor]) -> tuple[int, ...]:
    """Choose the weights that code gains from having inside: all but tables that only rows are taken of."""
    placeholders = module.graph.find_nodes(op="placeholder")
    return tuple(
        place for place, tensor in weights.items() if can_be_constant(tensor) and not _is_table(placeholders[place])
    )


def _is_table(node: torch.fx.Node) -> bool:
    return bool(node.users) and all(
        user.target == torch.ops.aten.embedding.default and user.args[0] is node for user in node.users
    )
