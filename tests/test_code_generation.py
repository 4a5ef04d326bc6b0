"""Kernels of a model in several modules of code: what is dealt out where, and that it runs as one module does."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import tirx as T

from tests.zoo import need
from tvm_ext.artifact.shared_object import host_modules
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.code_generation import build, dealt_out
from tvm_ext.compiler import compile as compile_model
from tvm_ext.compiler import lower
from tvm_ext.errors import CompileError
from tvm_ext.frontend import import_model
from tvm_ext.options import PipelineOptions

MODEL = "squeezenet"


@pytest.fixture(scope="module")
def lowered() -> tvm.IRModule:
    entry = need(MODEL)
    mod = import_model(entry.onnx_path(), input_shapes=entry.input_shapes()).mod
    return lower(mod, native_target(), PipelineOptions())[0]


def code(executable: relax.VMExecutable) -> list[str]:
    return [part.inspect_source("ll") for part in host_modules(executable.mod) if part.kind == "llvm"]


def kernels_in(source: str) -> set[str]:
    return set(re.findall(r"@__tvm_ffi_(\w+)\(", source))


def names(part: dict) -> set[str]:
    return {global_var.name_hint for global_var in part}


def test_every_kernel_is_in_one_module(lowered: tvm.IRModule) -> None:
    kernels = {
        global_var.name_hint for global_var, func in lowered.functions.items() if isinstance(func, tvm.tirx.PrimFunc)
    }
    parts = [kernels_in(source) & kernels for source in code(build(lowered, native_target()))]
    assert len(parts) == 4
    assert sum(map(len, parts)) == len(kernels)
    assert set.union(*parts) == kernels
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_answers_are_those_of_one_module(lowered: tvm.IRModule) -> None:
    (image,) = need(MODEL).inputs(3).values()
    found = []
    for executable in (build(lowered, native_target()), relax.build(lowered, native_target(), relax_pipeline=None)):
        found.append(relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(image)))
    first, second = (np.asarray(value.numpy() if hasattr(value, "numpy") else value[0].numpy()) for value in found)
    np.testing.assert_array_equal(first, second)


def test_kernels_that_call_each_other_stay_together() -> None:
    @I.ir_module(check_well_formed=False)
    class Calls:
        @T.prim_func(s_tir=True)
        def a(x: T.Buffer((4,), "float32")) -> None:
            x[0] = T.float32(1)

        @T.prim_func(s_tir=True)
        def b(x: T.Buffer((4,), "float32")) -> None:
            x[0] = T.float32(2)

        @T.prim_func(s_tir=True)
        def c(x: T.Buffer((4,), "float32")) -> None:
            Calls.a(x.data)

    mod = Calls
    for number in range(13):
        mod[f"k{number:02}"] = Calls["b"].with_attr("global_symbol", f"k{number:02}")
    parts = dealt_out(mod)
    assert len(parts) == 4
    assert sum(map(len, parts)) == 16
    (together,) = (part for part in parts if "a" in names(part))
    assert "c" in names(together)


def test_parts_do_not_depend_on_the_order_of_functions(lowered: tvm.IRModule) -> None:
    turned = tvm.IRModule(dict(reversed(list(lowered.functions.items()))))
    assert list(map(names, dealt_out(turned))) == list(map(names, dealt_out(lowered)))


def test_few_kernels_are_one_module() -> None:
    @I.ir_module
    class Few:
        @T.prim_func(s_tir=True)
        def a(x: T.Buffer((4,), "float32")) -> None:
            x[0] = T.float32(1)

    assert list(map(names, dealt_out(Few))) == [{"a"}]
    assert dealt_out(tvm.IRModule()) == []


def test_settings_of_the_context_reach_every_module(lowered: tvm.IRModule) -> None:
    assert any(" x float>" in source for source in code(build(lowered, native_target())))
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        without = code(build(lowered, native_target()))
    with_checks = code(build(lowered, native_target()))
    for source, checked in zip(without, with_checks, strict=True):
        assert source.count("Expected ") < checked.count("Expected ")


def test_a_kernel_that_cannot_be_compiled_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    entry, built = need(MODEL), tvm.tirx.build

    def failing(mod: tvm.IRModule, target: tvm.target.Target) -> object:
        if "softmax" in {global_var.name_hint for global_var in mod.functions}:
            raise ValueError("no code for softmax")
        return built(mod, target)

    monkeypatch.setattr(tvm.tirx, "build", failing)
    with pytest.raises(CompileError, match="code generation for target llvm failed: no code for softmax"):
        compile_model(entry.onnx_path(), input_shapes=entry.input_shapes())
