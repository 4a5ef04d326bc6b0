"""``torch.compile(model, backend="tvm_ext")``.

PyTorch finds :func:`backend` by the entry point group ``torch_dynamo_backends``; neither PyTorch nor TVM is imported
before it compiles something.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def backend(
    module: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """Compile a graph that Dynamo traced.

    Parameters
    ----------
    module : torch.fx.GraphModule
    example_inputs : sequence
        What it is called with.
    options : mapping, optional
        See :class:`tvm_ext.torch_compile.options.BackendOptions`.
    mode : str, optional
        Only inductor has modes.

    Returns
    -------
    function
        Takes the arguments of ``module``, and gives what that gives.

    Raises
    ------
    OptionError
        If an option or its value is unknown.
    TvmExtError
        If the graph cannot be compiled, and the option ``fallback`` is False.
    """
    from tvm_ext.torch_compile.options import BackendOptions
    from tvm_ext.torch_compile.traced import compile_traced

    return compile_traced(module, example_inputs, BackendOptions.parse(options, mode))
