"""Networks for Hexagon, in the emulator."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from unittest import mock

import numpy as np
import tvm

import tvm_ext
from scripts.fuzz.options import Options
from tvm_ext.backends.hexagon.code import assembly
from tvm_ext.backends.hexagon.model import program
from tvm_ext.backends.hexagon.model.compiled import load_hexagon
from tvm_ext.backends.hexagon.packer import choice
from tvm_ext.backends.hexagon.packer.pack import Packed
from tvm_ext.frontend.imported import ImportedModel

TARGETS = tuple(f"hexagon-v{version}" for version in (66, 67, 68, 69, 71, 73))

EFFORT = 5
"""Of the packing of a block."""


def run(imported: ImportedModel, feeds: Mapping[str, np.ndarray], options: Options) -> list[np.ndarray]:
    """Compile and run.

    Raises
    ------
    TvmExtError
        If the model is refused.
    """
    with mock.patch.object(choice, "EFFORT", EFFORT), contextlib.ExitStack() as stack:
        if options.packets == "llvm":
            stack.enter_context(mock.patch.object(program, "packed_kernels", _as_llvm_has_them))
        compiled = tvm_ext.compile(imported, options.level, **options.pipeline())
    return list(options.saved(compiled, load_hexagon).run(feeds).values())


def _as_llvm_has_them(mod: tvm.IRModule, target: tvm.target.Target, share: float) -> Packed:
    return Packed(assembly(mod, target))
