"""Modules for system libraries, of which a program may have several: their kernels have a prefix."""

from __future__ import annotations

import ctypes
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from tests.modules import Chain, Dynamic, arguments, run
from tvm_ext.backends.cpu.target import native_target


@pytest.mark.parametrize(("name", "module"), [("chain", Chain), ("dynamic", Dynamic)])
def test_kernels_of_a_system_library_have_its_prefix(name: str, module: tvm.IRModule, tmp_path: Path) -> None:
    """TVM renames no call in a function that takes the address of an element, as ours do to set a register."""
    target, prefix = native_target(), f"tvm_ext_{name}_"
    prefixed = module.with_attr("system_lib_prefix", prefix)
    with target:
        lowered = relax.get_pipeline("tvm_ext")(prefixed)
    kernels = [variable for variable, function in lowered.functions.items() if isinstance(function, tvm.tirx.PrimFunc)]
    assert all(variable.name_hint.startswith(prefix) for variable in kernels)
    executable = relax.build(prefixed, target, relax_pipeline="tvm_ext", system_lib=True)
    executable.export_library(str(tmp_path / "library.tar"))
    with tarfile.open(tmp_path / "library.tar") as archive:
        archive.extractall(tmp_path, filter="data")
    library = tmp_path / "library.so"
    subprocess.run(["c++", "-shared", "-o", library, *tmp_path.glob("*.o")], check=True)
    ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    machine = relax.VirtualMachine(tvm_ffi.system_lib(prefix), tvm.cpu())
    values = arguments(module, n=4)
    given = [tvm.runtime.tensor(value) for value in values]
    (expected,) = run(tvm.compile(module, target), values)
    np.testing.assert_allclose(machine["main"](*given).numpy(), expected, rtol=1e-5, atol=1e-6)
