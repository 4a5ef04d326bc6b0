"""MetaSchedule without the import of all tensor intrinsics, which takes 13 s."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PACKAGE = "tvm.s_tir.tensor_intrin"


@contextmanager
def only_tensor_intrinsics(*modules: str) -> Iterator[None]:
    """Keep MetaSchedule from importing TVM's tensor intrinsics, but for some of their modules.

    Parameters
    ----------
    *modules : str
        Modules of ``tvm.s_tir.tensor_intrin`` that a design space needs: ``"x86"`` for that of TVM on a CPU with
        AVX-512, none for that of our rules.
    """
    if PACKAGE in sys.modules:
        yield
        return
    import tvm.s_tir

    stand_in = types.ModuleType(PACKAGE)
    stand_in.__path__ = [str(Path(tvm.s_tir.__path__[0], "tensor_intrin"))]
    sys.modules[PACKAGE] = stand_in
    try:
        for module in modules:
            # It stays imported: the package itself, should it be wanted later, does not register its content again.
            importlib.import_module(f"{PACKAGE}.{module}")
        yield
    finally:
        del sys.modules[PACKAGE]
        tvm.s_tir.__dict__.pop("tensor_intrin", None)
