"""From a scheduled PrimFunc to the kernels that CUDA code is printed from, by TVM's own passes.

What is emulated is what ships: barriers, merged shared memory, warp reductions and software pipelines are in it. The
passes that only make a packed function of the host's part are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm.ir.instrument import pass_instrument

from tvm_ext.errors import CompileError, TargetError, first_line

_MERGE, _PACKED = "s_tir.MergeSharedMemoryAllocations", "tirx.MakePackedAPI"


@dataclass(frozen=True)
class Lowered:
    """A PrimFunc as its kernels and what launches them.

    Attributes
    ----------
    name : str
        Of the PrimFunc.
    host : PrimFunc
        Allocates intermediate tensors and calls kernels, in order.
    kernels : mapping of str to PrimFunc
        By the names that they have in CUDA sources.
    """

    name: str
    host: tvm.tirx.PrimFunc
    kernels: Mapping[str, tvm.tirx.PrimFunc]


@pass_instrument
class _Before:
    """Keeps the module that a pass is given."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.module: tvm.IRModule | None = None

    def run_before_pass(self, mod: tvm.IRModule, info: tvm.ir.transform.PassInfo) -> None:
        if info.name == self._name and self.module is None:
            # A pass may change the module in place; the functions themselves it replaces.
            self.module = tvm.IRModule(dict(mod.functions_items()))


class LaunchedKernels:
    """The kernels of a build, as its instrument saw them.

    Attributes
    ----------
    instrument : PassInstrument
        To be put into the pass context of the build.
    kernels : dict of str to PrimFunc
        By their names in CUDA sources, in the order of the functions that launch them.
    launcher : dict of str to str
        Of each kernel, the function that launches it.
    """

    def __init__(self) -> None:
        self.instrument = _Before(_PACKED)
        self.kernels: dict[str, tvm.tirx.PrimFunc] = {}
        self.launcher: dict[str, str] = {}

    def read(self) -> None:
        """Sort functions after the build: those that launch, and what they launch."""
        module = self.instrument.module
        assert module is not None
        functions = {variable.name_hint: func for variable, func in module.functions_items()}
        for name, func in functions.items():
            calls: list[Any] = []
            tvm_ffi.structural_walk(func.body, (tvm.ir.Call, calls.append))
            for call in calls:
                if getattr(call.op, "name", "") == "tirx.call_ffi_kernel":
                    kernel = str(call.args[0].value)
                    self.kernels[kernel], self.launcher[kernel] = functions[kernel], name


def lower(
    func: tvm.tirx.PrimFunc,
    target: tvm.target.Target,
    *,
    separate_shared: bool = False,
    async_copies: bool = False,
) -> Lowered:
    """Lower a scheduled function to its kernels.

    Parameters
    ----------
    func : PrimFunc
        Whose loops are bound to blocks and threads.
    target : tvm.target.Target
        A CUDA target.
    separate_shared : bool
        Leave each buffer of dynamic shared memory an allocation of its own, so that an index beyond its end is seen
        where another buffer would lie in what ships.
    async_copies : bool
        Turn the copies of software pipelines with asynchronous stages into ``cp.async``.

    Raises
    ------
    TargetError
        For a target that has no thread blocks.
    CompileError
        When TVM refuses the function.
    """
    if target.kind.name != "cuda":
        raise TargetError(f"the emulator runs kernels of CUDA targets; got a target of kind {target.kind.name!r}")
    name = str((func.attrs or {}).get("global_symbol", "main"))
    mod = tvm.IRModule({name: func.with_attr("global_symbol", name)})
    host = target.host if target.host is not None else tvm.target.Target("llvm")
    kept = _Before(_PACKED)
    disabled = [_MERGE] if separate_shared else []
    config = {"tirx.use_async_copy": True} if async_copies else {}
    try:
        pipeline, _, _ = tvm.tirx.get_tir_pipeline("s_tir")
        with tvm.transform.PassContext(instruments=[kept], disabled_pass=disabled, config=config):
            pipeline(tvm.tirx.transform.BindTarget(target.with_host(host))(mod))
    except Exception as error:
        if kept.module is None:
            raise CompileError(f"function {name} cannot be lowered for CUDA: {first_line(error)}") from error
    assert kept.module is not None
    functions = {variable.name_hint: inner for variable, inner in kept.module.functions_items()}
    device = tvm.IRModule({
        variable: inner for variable, inner in kept.module.functions_items() if variable.name_hint != name
    })  # fmt: skip
    device = tvm.tirx.transform.LowerWarpMemory()(device)
    kernels = {variable.name_hint: inner for variable, inner in device.functions_items()}
    return Lowered(name, functions[name], kernels)
