"""From a lowered module to an executable: kernels in several LLVM modules, which are compiled at the same time.

LLVM compiles a module in one thread, and that is more than half of a compilation. The kernels of a model are dealt out
to a number of modules that depends on the model alone, so that the code of a model does not depend on the processors of
the machine it was compiled on; as many of them are compiled at once as there are threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import networkx as nx
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax import vm_build

from tvm_ext.backends.registry import backend_of
from tvm_ext.relax_utils import called_by_name
from tvm_ext.system.threads import physical_cores

MOST_PARTS = 4
"""Modules that kernels are dealt out to at most; each costs some milliseconds, in compilation and when it is loaded."""

LEAST_KERNELS = 4
"""Kernels of a module at least, where there are several."""


def build(mod: tvm.IRModule, target: tvm.target.Target) -> Any:
    """Build the executable of a module that went through the whole pipeline.

    Parameters
    ----------
    mod : tvm.IRModule
        Instructions of the virtual machine, and scheduled kernels.
    target : tvm.target.Target

    Returns
    -------
    tvm.relax.VMExecutable
        As ``tvm.relax.build`` makes it, but that the first module of kernels imports the others.
    """
    context = tvm.transform.PassContext.current()
    attributes = mod.attrs or {}
    # Instruments belong to the thread that entered them.
    if not backend_of(target).independent_kernels or context.instruments or attributes.get("external_mods"):
        return relax.build(mod, target, relax_pipeline=None)
    # What `relax.build` does, up to the kernels.
    builder = relax.ExecBuilder()
    rest = vm_build._vmcodegen(builder, mod)
    parts = [tvm.IRModule(part, attrs=rest.attrs) for part in dealt_out(rest)]
    constants = dict(attributes.get("const_name_to_constant") or {})
    built = _built(parts, target, context)
    for other in built[1:]:
        built[0].import_module(other)
    library = built[0] if built else None
    return relax.VMExecutable(vm_build._ffi_api.VMLink(builder, target, library, [], constants))


def dealt_out(mod: tvm.IRModule) -> list[dict[tvm.ir.GlobalVar, tirx.PrimFunc]]:
    """Deal the kernels of a module out, in turns: neighbours are alike, and take as long.

    Kernels that call each other stay together.
    """
    calls = nx.Graph()
    kernels = {global_var: func for global_var, func in mod.functions.items() if isinstance(func, tirx.PrimFunc)}
    order = sorted(kernels, key=lambda global_var: str(global_var.name_hint))
    calls.add_nodes_from(order)
    by_name = {str(global_var.name_hint): global_var for global_var in order}
    for global_var in order:
        calls.add_edges_from((global_var, called) for called in _called(kernels[global_var]) if called in kernels)
        # The linker of one module does not see the functions of another one.
        named = (by_name.get(name) for name in called_by_name(kernels[global_var]))
        calls.add_edges_from((global_var, called) for called in named if called is not None)
    groups = [sorted(group, key=order.index) for group in nx.connected_components(calls)]
    count = max(1, min(MOST_PARTS, len(order) // LEAST_KERNELS, len(groups)))
    dealt = [[global_var for group in groups[number::count] for global_var in group] for number in range(count)]
    return [{global_var: kernels[global_var] for global_var in part} for part in dealt if part]


def _called(func: tirx.PrimFunc) -> Iterator[tvm.ir.GlobalVar]:
    found: list[tvm.ir.GlobalVar] = []
    tvm_ffi.structural_walk(func.body, (tvm.ir.GlobalVar, found.append))
    return iter(found)


def _built(parts: Sequence[tvm.IRModule], target: tvm.target.Target, context: tvm.transform.PassContext) -> list[Any]:
    """Compile modules of kernels, as many at once as there are processors to use."""

    def built(part: tvm.IRModule) -> Any:
        with tvm.transform.PassContext(
            context.opt_level, context.required_pass, context.disabled_pass, config=context.config
        ):
            return tvm.tirx.build(part, target)

    workers = min(len(parts), physical_cores())
    if workers < 2:
        return [built(part) for part in parts]
    pool = ThreadPoolExecutor(workers, "tvm-ext-codegen")
    try:
        return list(pool.map(built, parts))
    finally:
        pool.shutdown(cancel_futures=True)
