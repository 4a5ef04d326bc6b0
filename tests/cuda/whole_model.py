"""Runs whole models as they are compiled for CUDA, without a GPU: each kernel in the emulator, the rest by TVM."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.backends.cuda.emulator.emulate import Emulator
from tvm_ext.compiler import lower
from tvm_ext.frontend import import_model
from tvm_ext.phases import Phase
from tvm_ext.pipeline import checked_options
from tvm_ext.schedules.rule import RULE_ATTRIBUTE
from tvm_ext.target import resolve_target

SM_90 = resolve_target({"kind": "cuda", "arch": "sm_90"})
_NUMBERS = itertools.count()


class EmulatedModel:
    """A model whose kernels are those of a CUDA target.

    Parameters
    ----------
    model : IRModule or anything that :func:`tvm_ext.frontend.import_model` takes
    target : Target
    options : options of the pipeline

    Attributes
    ----------
    rules : dict of str to str
        By kernel, the rule that scheduled it; TVM's own have none.
    faults : list of str
        What the emulator found in the runs so far.
    fused : IRModule
        The same kernels before they were scheduled.
    """

    def __init__(self, model: Any, target: tvm.target.Target = SM_90, **options: Any) -> None:
        mod = model if isinstance(model, tvm.IRModule) else import_model(model).mod
        phases: dict[str, tvm.IRModule] = {}

        def keep(phase: Phase, after: tvm.IRModule) -> None:
            phases[phase.name] = tvm.IRModule(dict(after.functions_items()))

        lower(mod, target, checked_options(options), after_phase=keep)
        self.fused, scheduled = phases["fuse"], phases["schedule"]
        self.rules: dict[str, str] = {}
        self.faults: list[str] = []
        names = {}
        for variable, func in scheduled.functions_items():
            if isinstance(func, tirx.PrimFunc):
                name = variable.name_hint
                self.rules[name] = str((func.attrs or {}).get(RULE_ATTRIBUTE, ""))
                names[name] = f"tests.emulated.{next(_NUMBERS)}.{name}"
                tvm.register_global_func(names[name], self._kernel(name, func, target))
        caller = _Calls(scheduled, names)
        for variable, func in scheduled.functions_items():
            if isinstance(func, relax.Function):
                caller.builder_.update_func(variable, caller.visit_expr(func))
        functions = caller.builder_.get().functions_items()
        graph = tvm.IRModule({variable: func for variable, func in functions if isinstance(func, relax.Function)})
        with tvm.target.Target("llvm"):
            self._vm = relax.VirtualMachine(relax.build(graph, "llvm"), tvm.cpu())

    def _kernel(self, name: str, func: tirx.PrimFunc, target: tvm.target.Target) -> Callable[..., None]:
        emulators: list[Emulator] = []
        stored: list[Any] = []
        tvm_ffi.structural_walk(func.body, [(tirx.BufferStore, lambda store: stored.append(store.buffer))])
        results = [place for place, param in enumerate(func.params) if any(param.same_as(item) for item in stored)]

        def run(*given: Any) -> None:
            if not emulators:
                emulators.append(Emulator(func, target))
            flat = [part for value in given for part in (value if isinstance(value, tvm_ffi.Shape) else [value])]
            arrays = [np.asarray(part if isinstance(part, int | float) else part.numpy()) for part in flat]
            for place in results:  # no kernel may rely on what was there
                arrays[place] = np.full_like(arrays[place], np.frombuffer(b"\xff" * 8, arrays[place].dtype)[0])
            done = emulators[0](arrays)
            self.faults.extend(f"{name}: {fault}" for fault in done.report.faults)
            for place, (part, before, after) in enumerate(zip(flat, arrays, done.arrays, strict=True)):
                if place in results or (not isinstance(part, int | float) and before.tobytes() != after.tobytes()):
                    part.copyfrom(after)

        return run

    def __call__(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """Run the model; gives its results, one after the other."""
        return list(_arrays(self._vm["main"](*(tvm.runtime.tensor(value) for value in inputs))))


def _arrays(result: Any) -> Any:
    if isinstance(result, tvm.runtime.Tensor):
        yield result.numpy()
    else:
        for part in result:
            yield from _arrays(part)


@mutator
class _Calls(PyExprMutator):
    """Puts calls of functions of Python in the place of calls of kernels."""

    def __init__(self, mod: tvm.IRModule, names: dict[str, str]) -> None:
        super().__init__(mod)
        self._names = names

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") not in ("relax.call_tir", "relax.call_tir_inplace"):
            return call
        assert call.op.name == "relax.call_tir", "kernels in place are not of CUDA"
        kernel, arguments, *numbers = call.args
        result = call.ty_args[0]
        types = result if isinstance(result, relax.TensorType) else list(result.fields)
        assert not numbers, "no kernel of CUDA takes numbers behind its results"
        return relax.op.call_dps_packed(self._names[kernel.name_hint], arguments, types)
