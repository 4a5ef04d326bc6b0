"""All backends, and the one of a target."""

from __future__ import annotations

import tvm

from tvm_ext.backends.backend import Backend
from tvm_ext.backends.common import COMMON
from tvm_ext.backends.cpu.backend import CPU
from tvm_ext.backends.cuda.backend import CUDA
from tvm_ext.backends.gpu.backend import GPU
from tvm_ext.backends.hexagon.backend import HEXAGON, HEXAGON_SDK
from tvm_ext.backends.vta.backend import VTA
from tvm_ext.errors import OptionError

OTHER = Backend(name="other", accepts=lambda target: True, phases=COMMON)
"""Targets that TVM has a code generator for and this package nothing of its own."""

C = Backend(name="c", accepts=lambda target: target.kind.name == "c", phases=COMMON, shares_storage=True)
"""C sources."""

BACKENDS: tuple[Backend, ...] = (VTA, HEXAGON, CPU, CUDA, GPU, HEXAGON_SDK, C, OTHER)
"""In the order in which they are asked."""


def backend_of(target: tvm.target.Target) -> Backend:
    """Find the row of a target: the first that accepts it.

    Raises
    ------
    OptionError
        If it is none.
    """
    if not isinstance(target, tvm.target.Target):
        raise OptionError(f"target is {target!r}; expected a tvm.target.Target, such as tvm.target.Target('llvm')")
    return next(backend for backend in BACKENDS if backend.accepts(target))
