"""Loops that a condition ends: any number of iterations, and what few of them take."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_ext
from tests.frontend.onnx.test_loops import TARGET, check, check_compiled, no_unrolling
from tests.frontend.onnx.text import graph

pytest.importorskip("onnxruntime")

__all__ = ["no_unrolling"]  # a fixture of all tests here


WHILE = """g (float[3] x, int64 most, float bound, bool begin) => (float[3] y, int64 count) {
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  y, count = Loop (LIMIT, begin, x, zero) <
    body = step (int64 i, bool c, float[3] s, int64 n) => (bool d, float[3] t, int64 m) {
      t = Mul (s, half)
      total = ReduceSum <keepdims = 0> (t)
      d = Greater (total, bound)
      m = Add (n, one)
    }
  >
}"""


@pytest.mark.parametrize("limit", ["", "most", "hundred", "huge"])
def test_iterations_that_depend_on_values(limit: str) -> None:
    model = graph(
        WHILE.replace("LIMIT", limit),
        half=np.asarray(0.9, "float32"),
        hundred=np.asarray(100),
        huge=np.asarray(2**63 - 1),
    )
    compiled = tvm_ext.compile(model, TARGET)
    for most, bound, begin in [(5, 0.1, True), (50, 0.1, True), (0, 0.1, True), (7, 9, False)]:
        inputs = {
            "x": np.asarray([3, 4, 5], "float32"),
            "most": np.asarray(most),
            "bound": np.asarray(bound, "float32"),
            "begin": np.asarray(begin),
        }
        check_compiled(compiled, model, inputs)


@pytest.mark.parametrize("limit", ["", "hundred"])
def test_every_number_of_iterations(limit: str) -> None:
    model = graph(
        WHILE.replace("LIMIT", limit), half=np.asarray(0.9, "float32"), most=np.asarray(100), hundred=np.asarray(100)
    )
    compiled = tvm_ext.compile(model, TARGET)
    for trips in range(1, 70):
        inputs = {"x": np.asarray([3, 4, 5], "float32"), "begin": np.asarray(True)}
        inputs["bound"] = np.asarray(12 * 0.9 ** (trips - 0.5), "float32")
        assert check_compiled(compiled, model, inputs)[1] == trips


def test_few_iterations_do_not_return_through_functions_for_many() -> None:
    model = graph(
        WHILE.replace("LIMIT", ""), half=np.asarray(0.9, "float32"), most=np.asarray(100), begin=np.asarray(True)
    )
    compiled = tvm_ext.compile(model, TARGET)
    instructions = []
    machine = relax.VirtualMachine(compiled.executable, tvm.cpu())
    machine.set_instrument(lambda _function, name, before, _result, *_arguments: instructions.append(name))
    bound = np.asarray(12 * 0.9**4.5, "float32")
    machine["main"](*map(tvm.runtime.tensor, [np.asarray([3, 4, 5], "float32"), bound]))
    branches = instructions.count("vm.builtin.read_if_cond")
    assert 5 <= branches <= 18, (
        branches
    )  # noted before and after a call; functions for a million have 20 one in another


def test_many_iterations_of_an_unbounded_loop() -> None:
    model = graph(
        """g (int64 n) => (int64 y, float z) {
          zero = Constant <value_int = 0> ()
          start = Constant <value_float = 1.0> ()
          true = Equal (zero, zero)
          y, z = Loop (, true, zero, start) <
            body = step (int64 i, bool c, int64 s, float u) => (bool d, int64 t, float v) {
              t = Add (s, i)
              v = Mul (u, q)
              d = Less (i, n)
            }
          >
        }""",
        q=np.asarray(0.9999, "float32"),
    )
    check(model, {"n": np.asarray(40_000)})
