"""The backend of ``torch.compile``: graphs that PyTorch traced become compiled code, or stay with PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import RestartAnalysis, TensorifyScalarRestartAnalysis
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext
from torch.fx import GraphModule

from tvm_ext.errors import ModelError, OptionError, TvmExtError, UnsupportedOperatorError, warn
from tvm_ext.frontend.torch.export import class_and_line
from tvm_ext.system.compile_lock import one_compilation
from tvm_ext.target import resolve_target
from tvm_ext.torch_compile.beside_torch import target_beside_torch
from tvm_ext.torch_compile.decompositions import decompositions, operators_with_converters
from tvm_ext.torch_compile.graph import CompiledGraph
from tvm_ext.torch_compile.options import BackendOptions
from tvm_ext.torch_compile.outputs import Outputs
from tvm_ext.torch_compile.split import compile_parts
from tvm_ext.torch_compile.weights import can_be_constant

Run = Callable[[list[Any]], list[Any]]


def compile_traced(module: GraphModule, example_inputs: Sequence[Any], options: BackendOptions) -> Callable[..., Any]:
    """Compile what Dynamo traced.

    Parameters
    ----------
    module : torch.fx.GraphModule
        In PyTorch's operators, as Dynamo traced them.
    example_inputs : sequence
        Its arguments in the call that it was traced for, parameters and buffers among them.
    options : BackendOptions

    Returns
    -------
    function
        Takes the arguments of ``module``, and gives what that gives.

    Raises
    ------
    TvmExtError
        If it cannot be compiled, and ``options.fallback`` is False.
    """
    compiler = _Compiler(module, example_inputs, options)
    has_gradients = takes_gradients(module, compiler.values)
    try:
        with one_compilation(), operators_with_converters(has_gradients):
            return aot_autograd(
                fw_compiler=compiler.forward,
                bw_compiler=_in_torch,
                inference_compiler=compiler.inference,
                partition_fn=min_cut_rematerialization_partition,
                decompositions=dict(decompositions(has_gradients)),
            )(module, example_inputs)
    except (RestartAnalysis, TensorifyScalarRestartAnalysis, OptionError):
        raise
    except Exception as error:  # tracing runs code of subclasses of tensors, and raises what that raises
        if not options.fallback:
            raise
        warn(f"torch.compile: PyTorch runs a graph that cannot be compiled: {_sentence(error)}; {ADVICE}")
        return module.forward


ADVICE = "options={'fallback': False} makes this an error"


class _Compiler:
    """What AOTAutograd calls with the graphs that it makes of one that Dynamo traced."""

    def __init__(self, module: GraphModule, example_inputs: Sequence[Any], options: BackendOptions) -> None:
        self._options = options
        self._faults: list[str] = []
        own = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
        self.values = [*(tensor for _, tensor in own), *example_inputs]

    def inference(self, module: GraphModule, _fake_inputs: Sequence[Any]) -> Run:
        """Compile a graph that no gradients are taken of."""
        return self._compile(module, has_gradients=False)

    def forward(self, module: GraphModule, _fake_inputs: Sequence[Any]) -> Run:
        """Compile a graph that also returns what another one, which PyTorch runs, computes gradients from."""
        return self._compile(module, has_gradients=True)

    def _compile(self, module: GraphModule, has_gradients: bool) -> Run:
        if computes_nothing(module):
            return in_torch(module)
        _require_cpu(module)
        run = self._whole_or_parts(module, self._weights(module), has_gradients, self._options)
        if self._faults:
            warn(
                f"torch.compile: PyTorch runs what cannot be compiled of a graph, and the rest of it is compiled in "
                f"parts: {'; '.join(self._faults)}; {ADVICE}"
            )
        return run

    def _whole_or_parts(
        self, module: GraphModule, weights: dict[int, torch.Tensor], has_gradients: bool, options: BackendOptions
    ) -> Run:
        try:
            return CompiledGraph(module, weights, options, has_gradients)
        except UnsupportedOperatorError as error:
            names = set(error.faults.values())
            if not options.fallback or not names or not names <= {node.name for node in module.graph.nodes}:
                raise
            found = len(self._faults)
            self._faults.extend(error.faults)
            parts = compile_parts(module, names, weights, lambda part, inside: self._part(part, inside, has_gradients))
            if parts is None:
                del self._faults[found:]
                raise
            return parts

    def _part(self, module: GraphModule, weights: dict[int, torch.Tensor], has_gradients: bool) -> Run:
        target = target_beside_torch(module, resolve_target(self._options.target))
        try:
            return self._whole_or_parts(module, weights, has_gradients, replace(self._options, target=target))
        except TvmExtError as error:
            self._faults.append(str(error))
            return in_torch(module)

    def _weights(self, module: GraphModule) -> dict[int, torch.Tensor]:
        """Find the parameters and buffers among the arguments of a graph, those that it changes left out."""
        context = TracingContext.try_get()
        placeholders = module.graph.find_nodes(op="placeholder")
        if context is None or context.fw_metadata is None or len(placeholders) != len(self.values):
            return {}
        changed = set(context.fw_metadata.mutated_inp_runtime_indices)
        found = {}
        for place in context.fw_metadata.static_input_indices:
            value, expected = self.values[place], placeholders[place].meta.get("val")
            if place not in changed and can_be_constant(value) and _is_like(value, expected):
                found[place] = value
        return found


def takes_gradients(module: GraphModule, values: Sequence[Any]) -> bool:
    """Say whether gradients are taken of what is traced, by a caller or by itself.

    Composite operators that are kept whole have no gradients while PyTorch traces: with ``torch.func.grad`` inside the
    graph they would come out as zeros. The graph may also switch gradients on where its caller has them off.
    """
    calls = [
        node
        for part in module.modules()
        if isinstance(part, GraphModule)
        for node in part.graph.nodes
        if node.op == "call_function"
    ]
    if any("functorch" in str(getattr(node.target, "__module__", "")) for node in calls):
        return True
    enabled = torch.is_grad_enabled() or any(
        node.target is torch._C._set_grad_enabled and node.args == (True,) for node in calls
    )
    return enabled and any(getattr(value, "requires_grad", False) for value in values)


def computes_nothing(module: GraphModule) -> bool:
    """Say whether a graph only hands on its arguments, or numbers."""
    return Outputs(module).computed is None


def in_torch(module: GraphModule) -> Run:
    """Let PyTorch run a graph."""
    return make_boxed_func(module.forward)


def _in_torch(module: GraphModule, _fake_inputs: Sequence[Any]) -> Run:
    return in_torch(module)


def _is_like(value: torch.Tensor, expected: Any) -> bool:
    return isinstance(expected, torch.Tensor) and (value.shape, value.dtype) == (expected.shape, expected.dtype)


def _require_cpu(module: GraphModule) -> None:
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            raise ModelError(f"its tensor {node.name} is on device {value.device}, and only those of the CPU are taken")


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, TvmExtError) else class_and_line(error)
