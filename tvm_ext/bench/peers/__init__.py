"""The engines a model can be measured in: one row here, one file each.

The file of an engine is imported in the worker only. It defines ``version() -> str`` and a class ``Engine`` (see
:class:`tvm_ext.bench.protocol.Engine`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvm_ext.bench.protocol import ModelKind


@dataclass(frozen=True)
class EngineInfo:
    """An engine that can be asked for.

    Attributes
    ----------
    name : str
        What the user writes.
    packages : mapping of str to tuple of str
        For each kind of model file the engine runs, the modules that must be importable.
    install : str
        How to get them.
    file : Path
        Python file that holds the engine.
    options : tuple of str, or None
        Options that it takes; None: those of :func:`tvm_ext.compile`.
    devices : tuple of str
        Kinds of devices on which it is measured when no engine is named.
    fixed : mapping
        Options that make it what its name says.
    """

    name: str
    packages: Mapping[ModelKind, tuple[str, ...]]
    install: str
    file: Path
    options: tuple[str, ...] | None = ()
    devices: tuple[str, ...] = ("cpu", "cuda")
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def runs(self, kind: ModelKind) -> bool:
        """Tell whether the engine runs models of this kind."""
        return kind in self.packages

    def missing(self, kind: ModelKind) -> list[str]:
        """List the modules that are needed for this kind and not installed, without importing any."""
        return [package for package in self.packages[kind] if importlib.util.find_spec(package) is None]


def _row(
    name: str,
    packages: Mapping[ModelKind, tuple[str, ...]],
    install: str,
    options: tuple[str, ...] | None = (),
    devices: tuple[str, ...] = ("cpu", "cuda"),
    **fixed: Any,
) -> tuple[str, EngineInfo]:
    file = Path(__file__).with_name(f"{name.partition('.')[0]}_engine.py")
    return name, EngineInfo(name, packages, install, file, options, devices, fixed)


_TVM: Mapping[ModelKind, tuple[str, ...]] = {"onnx": ("tvm",), "pt2": ("tvm", "torch"), "ir": ("tvm",)}

# In the order of the table that a user sees.
ENGINES: dict[str, EngineInfo] = dict(
    (
        _row("tvm", _TVM, "pip install torch"),
        _row("tvm_ext", _TVM, "pip install torch", None),
        _row(
            "onnxruntime",
            {"onnx": ("onnxruntime",), "pt2": ("onnxruntime", "torch", "onnxscript")},
            "pip install 'tvm-ext[bench]' torch onnxscript",
            ("exact",),
        ),
        _row(
            "openvino",
            {"onnx": ("openvino",), "pt2": ("openvino", "torch")},
            "pip install 'tvm-ext[bench]' torch",
            ("precision",),
            ("cpu",),
        ),
        _row("torch", {"pt2": ("torch",)}, "pip install torch"),
        _row("torch.compile", {"pt2": ("torch",)}, "pip install torch", devices=("cuda",), compiled=True),
    )
)
