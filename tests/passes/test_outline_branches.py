"""Modules that branch compute what their branches say, whatever plans their memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tvm_ext.passes.outline_branches import outline_branches

OPTIONS: tuple[dict[str, Any], ...] = ({}, {"memory": "arena"}, {"memory": "optimal"}, {"fuse": "mapping-type"})


@I.ir_module
class Branches:
    """Branches that need different numbers of intermediate tensors, and one within another."""

    @R.function
    def main(c: R.Tensor((), "bool"), d: R.Tensor((), "bool"), x: R.Tensor((3, 5), "float32")) -> R.Tensor(
        (3, 5), "float32"
    ):
        a = R.nn.relu(x)
        if c:
            y = R.exp(a)
            z = R.add(y, x)
        else:
            b = R.abs(x)
            s = R.sqrt(b)
            if d:
                e = R.add(s, a)
                t = R.tanh(e)
            else:
                e = R.multiply(s, b)
                f = R.concat((e, s), axis=0)
                g = R.sum(f, axis=0, keepdims=True)
                t = R.subtract(a, g)
            z = R.multiply(t, R.const(2.0, "float32"))
        w = R.add(z, a)
        return w


def branches(c: bool, d: bool, x: np.ndarray) -> np.ndarray:
    a, s = np.maximum(x, 0), np.sqrt(np.abs(x))
    if c:
        return np.exp(a) + x + a
    t = np.tanh(s + a) if d else a - np.concatenate([s * np.abs(x), s]).sum(axis=0, keepdims=True)
    return t * 2 + a


@I.ir_module
class Alias:
    """A branch that returns what it was given: its storage must live as long as the result."""

    @R.function
    def main(c: R.Tensor((), "bool"), x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
        a = R.exp(x)
        if c:
            y = R.multiply(a, R.const(1.0, "float32"))
            z = y
        else:
            z = a
        b = R.negative(x)
        e = R.exp(b)
        f = R.add(e, x)
        g = R.sqrt(R.abs(f))
        w = R.add(R.add(g, e), z)
        return w


@I.ir_module
class Pair:
    """Branches that return tuples."""

    @R.function
    def main(c: R.Tensor((), "bool"), x: R.Tensor((3, 5), "float32")) -> R.Tensor((3, 5), "float32"):
        a = R.exp(x)
        if c:
            y = R.add(a, x)
            t = (y, a)
        else:
            y = R.subtract(a, x)
            t = (a, y)
        left = t[0]
        right = t[1]
        w = R.subtract(left, R.tanh(right))
        return w


@I.ir_module
class Symbolic:
    """Extents that no captured tensor has as a dimension of its own."""

    @R.function
    def main(c: R.Tensor((), "bool"), x: R.Tensor(("n", 3), "float32")) -> R.Tensor(("2 * n", 3), "float32"):
        n = T.int64()
        d = R.concat((x, x), axis=0)
        if c:
            o = R.ones(R.shape([n * 2, 3]), "float32")
            z = R.add(d, o)
        else:
            z = R.exp(d)
        w = R.add(z, d)
        return w


def run(mod: tvm.IRModule, options: dict[str, Any], *arguments: np.ndarray) -> np.ndarray:
    pipeline = relax.get_pipeline("tvm_ext", **options)
    executable = tvm.compile(mod, tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"}), relax_pipeline=pipeline)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arguments)).numpy()


GENERATOR = np.random.default_rng(0)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_branches(options: dict[str, Any]) -> None:
    x = GENERATOR.standard_normal((3, 5)).astype("float32")
    for c, d in ((True, True), (False, True), (False, False)):
        result = run(Branches, options, np.array(c), np.array(d), x)
        np.testing.assert_allclose(result, branches(c, d, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_branch_that_returns_its_argument(options: dict[str, Any]) -> None:
    x = GENERATOR.standard_normal((4, 8)).astype("float32")
    f = np.exp(-x) + x
    expected = np.sqrt(np.abs(f)) + np.exp(-x) + np.exp(x)
    for c in (True, False):
        np.testing.assert_allclose(run(Alias, options, np.array(c), x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_tuples(options: dict[str, Any]) -> None:
    x = GENERATOR.standard_normal((3, 5)).astype("float32")
    a = np.exp(x)
    for c, expected in ((True, a + x - np.tanh(a)), (False, a - np.tanh(a - x))):
        np.testing.assert_allclose(run(Pair, options, np.array(c), x), expected, rtol=1e-5, atol=1e-5)


def test_symbolic_extents() -> None:
    for n in (1, 4):
        x = GENERATOR.standard_normal((n, 3)).astype("float32")
        d = np.concatenate([x, x])
        for c, expected in ((True, d + 1 + d), (False, np.exp(d) + d)):
            np.testing.assert_allclose(run(Symbolic, {}, np.array(c), x), expected, rtol=1e-5, atol=1e-5)


def test_only_the_choosing_functions_branch() -> None:
    mod = outline_branches()(Branches)
    relax.analysis.well_formed(mod)  # raises where it is not
    for variable, function in mod.functions_items():
        found: list[Any] = []
        relax.analysis.post_order_visit(function, lambda node, seen=found: seen.append(node))
        assert any(isinstance(node, relax.If) for node in found) == ("_if" in variable.name_hint)


def test_a_module_without_branches_is_left_alone() -> None:
    @I.ir_module
    class Straight:
        @R.function
        def main(x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
            y = R.exp(x)
            return y

    tvm.ir.assert_structural_equal(outline_branches()(Straight), Straight)
