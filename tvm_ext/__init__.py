"""Graph passes, kernel schedules, tuners and a VTA backend that plug into stock Apache TVM.

``import tvm_ext`` registers names (pipelines, target tags) and builds nothing; the parts are imported when first used.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from tvm_ext.registration import register
from tvm_ext.version import __version__

__all__ = [
    "CompiledModel",
    "Generator",
    "__version__",
    "compile",
    "errors",
    "graph",
    "import_model",
    "inputs",
    "load",
    "passes",
    "pipeline",
    "tuners",
    "tuning",
]

if TYPE_CHECKING:
    from tvm_ext.artifact.compiled_model import CompiledModel, load
    from tvm_ext.compiler import compile
    from tvm_ext.frontend import import_model
    from tvm_ext.generation.generator import Generator

# Public name -> "module:attribute" ("module" alone: the module itself).
_LAZY = {
    "CompiledModel": "tvm_ext.artifact.compiled_model:CompiledModel",
    "Generator": "tvm_ext.generation.generator:Generator",
    "compile": "tvm_ext.compiler:compile",
    "errors": "tvm_ext.errors",
    "graph": "tvm_ext.graph",
    "import_model": "tvm_ext.frontend:import_model",
    "inputs": "tvm_ext.inputs",
    "load": "tvm_ext.artifact.compiled_model:load",
    "passes": "tvm_ext.passes",
    "pipeline": "tvm_ext.pipeline",
    "tuners": "tvm_ext.tuners",
    "tuning": "tvm_ext.tuning",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'tvm_ext' has no attribute '{name}'")
    module, _, attribute = _LAZY[name].partition(":")
    value = importlib.import_module(module)
    return getattr(value, attribute) if attribute else value


def __dir__() -> list[str]:
    return sorted(__all__)


# Where TVM is not imported yet its own import registers, through the entry point, and this import stays quick; where
# that was switched off, or came first, it is done here.
if "tvm" in sys.modules or os.environ.get("TVM_DEVICE_BACKEND_AUTOLOAD", "1") == "0":
    register()
