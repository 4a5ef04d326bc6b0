"""Loops and branches that stay in the compiled module, against onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from tvm import relax

import tvm_ext
from tests.frontend.onnx.text import graph, operators
from tests.recurrent_loops import stacked_loops
from tvm_ext.artifact.compiled_model import CompiledModel
from tvm_ext.errors import UnsupportedOperatorError
from tvm_ext.frontend import import_model
from tvm_ext.frontend.onnx import loops as onnx_loops
from tvm_ext.frontend.onnx.model import load_onnx
from tvm_ext.frontend.onnx.prepare import prepare
from tvm_ext.verify import onnxruntime_outputs

pytest.importorskip("onnxruntime")

TARGET = {"kind": "llvm", "opt-level": 3}


@pytest.fixture(autouse=True)
def no_unrolling(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Keep loops that are short enough to be unrolled."""
    monkeypatch.setattr(onnx_loops, "SHORT_LOOP", -1)


def check(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], **options: Any) -> list[np.ndarray]:
    """Compile, run twice, and compare with onnxruntime."""
    return check_compiled(tvm_ext.compile(model, TARGET, **options), model, inputs)


def check_compiled(
    compiled: CompiledModel, model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """Run twice, and compare with onnxruntime."""
    expected = onnxruntime_outputs(model, inputs)
    for _ in range(2):
        results = compiled.run(inputs)
        assert len(results) == len(expected)
        for found, wanted in zip(results.values(), expected, strict=True):
            assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
            if wanted.dtype.kind == "f":
                np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)
            else:
                np.testing.assert_array_equal(found, wanted)
    return list(results.values())


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


COUNTED = """g (float[1,5] x, float[TRIPS,1,5] seq) => (float[1,5] last, float[n,1,5] all) {
  last, all = Loop (trips, , x) <
    body = step (int64 i, bool c, float[1,5] s) => (bool d, float[1,5] next, float[1,5] seen) {
      d = Identity (c)
      row = Gather (seq, i)
      m = MatMul (s, w)
      p = Add (m, row)
      next = Tanh (p)
      seen = Neg (p)
    }
  >
}"""


@pytest.mark.parametrize("trips", [1, 2, 3, 7, 8, 31, 300])
def test_known_number_of_iterations(trips: int) -> None:
    model = graph(COUNTED.replace("TRIPS", str(trips)), trips=np.asarray(trips), w=draw(5, 5))
    assert operators(prepare(load_onnx(model)).skeleton) == ["Loop"]
    check(model, {"x": draw(1, 5), "seq": draw(trips, 1, 5, seed=1)})


def test_no_iterations() -> None:
    model = graph(COUNTED.replace("TRIPS", "3"), trips=np.asarray(0), w=draw(5, 5))
    last, rows = check(model, {"x": draw(1, 5), "seq": draw(3, 1, 5)})
    np.testing.assert_array_equal(last, draw(1, 5))
    assert rows.shape == (0, 1, 5)


@pytest.mark.parametrize("memory", ["stock", "arena", "optimal"])
@pytest.mark.parametrize("fuse", ["stock", "mapping-type"])
def test_planned_memory(memory: str, fuse: str) -> None:
    model = graph(COUNTED.replace("TRIPS", "13"), trips=np.asarray(13), w=draw(5, 5))
    check(model, {"x": draw(1, 5), "seq": draw(13, 1, 5)}, memory=memory, fuse=fuse, rewrite="strict")


def test_a_loop_with_one_result() -> None:
    model = graph(
        """g (float[3] x, float bound) => (float[3] y) {
          one = Constant <value_int = 1> ()
          begin = Cast <to = 9> (one)
          y = Loop (, begin, x) <
            body = step (int64 i, bool c, float[3] s) => (bool d, float[3] t) {
              t = Mul (s, half)
              total = ReduceSum <keepdims = 0> (t)
              d = Greater (total, bound)
            }
          >
        }""",
        half=np.asarray(0.9, "float32"),
    )
    check(model, {"x": np.asarray([3, 4, 5], "float32"), "bound": np.asarray(0.1, "float32")})


STACKED = """g (float[2] x, int64 n, int64 stop) => (float[r,2] all, float[2] last) {
  true = Constant <value_int = 1> ()
  go = Cast <to = 9> (true)
  last, all = Loop (LIMIT, go, x) <
    body = step (int64 i, bool c, float[2] s) => (bool d, float[2] t, float[2] u) {
      t = Add (s, x)
      u = Neg (t)
      d = Less (i, stop)
    }
  >
}"""


@pytest.mark.parametrize("stop", [0, 1, 4, 12, 99])
def test_stacked_results_of_a_loop_that_a_condition_ends(stop: int) -> None:
    model = graph(STACKED.replace("LIMIT", "twenty"), twenty=np.asarray(20))
    results = check(model, {"x": draw(2), "n": np.asarray(20), "stop": np.asarray(stop)})
    assert results[0].shape == (min(20, stop + 1), 2)


def test_nested_loops_and_branches() -> None:
    text = """g (float[4] x, bool flip, int64 outer) => (float[4] y, float[k,4] rows) {
      y, rows = Loop (nine, , x) <
        body = step (int64 i, bool c, float[4] s) => (bool d, float[4] t, float[4] seen) {
          d = Identity (c)
          fi = Cast <to = 1> (i)
          inner = Loop (outer, , s) <
            body = deep (int64 j, bool e, float[4] p) => (bool f, float[4] q) {
              f = Identity (e)
              fj = Cast <to = 1> (j)
              r = Mul (fi, fj)
              q = If (flip) <
                then_branch = a () => (float[4] ya) { ya = Add (p, r) },
                else_branch = b () => (float[4] yb) { yo = Sub (p, r) yb = Mul (yo, x) }
              >
            }
          >
          t = Add (inner, x)
          seen = Identity (inner)
        }
      >
    }"""
    model = graph(text, nine=np.asarray(9))
    compiled = tvm_ext.compile(model, TARGET)
    for flip in (True, False):
        for outer in (0, 3):
            check_compiled(compiled, model, {"x": draw(4) / 4, "flip": np.asarray(flip), "outer": np.asarray(outer)})


def test_a_result_may_be_what_the_loop_began_with() -> None:
    """No kernel after the loop may write over it."""
    text = """g (float[64,64] x, bool go) => (float[64,64] a, float[64,64] b) {
      h = Exp (x)
      r = Loop (, go, h) <
        body = step (int64 i, bool c, float[64,64] s) => (bool d, float[64,64] t) {
          t = Sin (s)
          three = Constant <value_int = 3> ()
          d = Less (i, three)
        }
      >
      n = Neg (r)
      a = MatMul (n, w)
      q = Sqrt (h)
      b = MatMul (q, w)
    }"""
    model = graph(text, w=draw(64, 64) / 8)
    check(model, {"x": draw(64, 64), "go": np.asarray(False)}, memory="arena")


def test_stacks_as_long_as_an_extent() -> None:
    text = """g (float[n,3] x, float[3] s0) => (float[3] s, float[k,3] rows) {
      shape = Shape (x)
      count = Gather (shape, zero)
      s, rows = Loop (count, , s0) <
        body = step (int64 i, bool c, float[3] v) => (bool d, float[3] w, float[3] row) {
          d = Identity (c)
          taken = Gather (x, i)
          w = Add (v, taken)
          row = Mul (w, taken)
        }
      >
    }"""
    model = graph(text, zero=np.asarray(0))
    compiled = tvm_ext.compile(model, TARGET, dynamic="n=1..40")
    for rows in (1, 3, 17, 31, 40):
        check_compiled(compiled, model, {"x": draw(rows, 3), "s0": draw(3, seed=1)})


def refusal(text: str, **initializers: np.ndarray) -> str:
    with pytest.raises(UnsupportedOperatorError) as caught:
        tvm_ext.compile(graph(text, **initializers), TARGET)
    return str(caught.value)


def test_a_carried_shape_that_changes_is_refused() -> None:
    text = """g (float[2] x, int64 n) => (float[m] y) {
      y = Loop (n, , x) <
        body = step (int64 i, bool c, float[m] s) => (bool d, float[k] t) {
          d = Identity (c)
          t = Concat <axis = 0> (s, x)
        }
      >
    }"""
    assert "joins a tensor with a piece in every iteration, and nothing bounds the number" in refusal(text)
    read = text.replace("t = Concat <axis = 0> (s, x)", "r = Neg (s) t = Concat <axis = 0> (r, x)")
    assert "its carried tensor 's' has shape [2] before an iteration and [4] after it" in refusal(read)


def test_a_carried_shape_that_changes_is_unrolled_where_possible() -> None:
    text = """g (float[2] x) => (float[m] y) {
      y = Loop (five, , x) <
        body = step (int64 i, bool c, float[m] s) => (bool d, float[k] t) {
          d = Identity (c)
          t = Concat <axis = 0> (s, x)
        }
      >
    }"""
    check(graph(text, five=np.asarray(5)), {"x": draw(2)})


def test_unbounded_stacks_are_refused() -> None:
    assert "nothing bounds the number of its iterations" in refusal(STACKED.replace("LIMIT", "n"))
    assert "would take 80.0 GB" in refusal(STACKED.replace("LIMIT", "many"), many=np.asarray(10**10))


def test_branches_that_disagree_are_refused() -> None:
    text = """g (float[2] x, bool c) => (y) {
      y = If (c) <
        then_branch = a () => (float[2] t) { t = Neg (x) },
        else_branch = b () => (float[1,2] e) { axes = Constant <value = int64[1] {0}> () e = Unsqueeze (x, axes) }
      >
    }"""
    assert "its output 'y' is float32[2] in one branch and float32[1, 2] in the other" in refusal(text)


def test_a_node_inside_a_body_that_cannot_be_imported() -> None:
    text = """g (float[2] x, int64 n) => (float[2] y) {
      [outer] y = Loop (n, , x) < body = s (int64 i, bool c, float[2] v) => (bool d, float[2] w) {
        d = Identity (c) [bad] w = com.acme.Widget (v) } >
    }"""
    message = refusal(text)
    assert "Loop node 'outer': " in message
    assert "Widget" in message


def test_the_size_of_the_module_does_not_depend_on_the_number_of_steps() -> None:
    counts = []
    for steps in (64, 4096):
        mod = import_model(stacked_loops(steps, layers=2, size=3, hidden=5)).mod
        functions = [function for function in mod.functions.values() if isinstance(function, relax.Function)]
        counts.append(sum(len(block.bindings) for function in functions for block in function.body.blocks))
    assert counts[1] < 2 * counts[0] < 1000


@pytest.mark.parametrize("steps", [1, 31])
def test_recurrent_layers_written_as_loops(steps: int) -> None:
    check(stacked_loops(steps, layers=2, size=3, hidden=17), {"x": draw(steps, 1, 3)})


SEQUENCE = """g (float[3] x) => (float[n,3] stacked, float[m] joined, float[3] third, int64 count) {
  none = SequenceEmpty <dtype = 1> ()
  last, rows, other = Loop (TRIPS, go, x, none, none) <
    body = step (int64 i, bool c, float[3] s, seq(float[3]) r, seq(float[3]) q) => (
      bool d, float[3] t, seq(float[3]) u, seq(float[3]) v
    ) {
      t = Sin (s)
      u = SequenceInsert (r, t)
      o = Neg (s)
      v = SequenceInsert (q, o)
      d = Identity (c)
    }
  >
  stacked = ConcatFromSequence <axis = 0, new_axis = 1> (rows)
  joined = ConcatFromSequence <axis = -1> (other)
  two = Constant <value_int = 2> ()
  third = SequenceAt (rows, two)
  count = SequenceLength (other)
}"""


@pytest.mark.parametrize("trips", [3, 300])
def test_sequences_that_grow(trips: int) -> None:
    model = graph(SEQUENCE.replace("TRIPS", "trips"), trips=np.asarray(trips), go=np.asarray(True))
    assert "SplitToSequence" not in operators(prepare(load_onnx(model)).skeleton)
    check(model, {"x": draw(3)})


def test_a_sequence_that_grows_and_is_needed_as_one() -> None:
    text = """g (float[2] x) => (float[2] y) {
      none = SequenceEmpty <dtype = 1> ()
      last, rows = Loop (trips, go, x, none) <
        body = step (int64 i, bool c, float[2] s, seq(float[2]) r) => (bool d, float[2] t, seq(float[2]) u) {
          t = Sin (s)
          u = SequenceInsert (r, t)
          d = Identity (c)
        }
      >
      zero = Constant <value_int = 0> ()
      less = SequenceErase (rows, zero)
      y = SequenceAt (less, zero)
    }"""
    check(graph(text, trips=np.asarray(5), go=np.asarray(True)), {"x": draw(2)})


def test_sequences_of_tensors_that_differ_are_unrolled() -> None:
    text = """g (float[2] x) => (float[n] y) {
      none = SequenceEmpty <dtype = 1> ()
      last, rows = Loop (trips, go, x, none) <
        body = step (int64 i, bool c, float[n] s, seq(float[n]) r) => (bool d, float[m] t, seq(float[n]) u) {
          t = Concat <axis = 0> (s, x)
          u = SequenceInsert (r, t)
          d = Identity (c)
        }
      >
      y = ConcatFromSequence <axis = 0> (rows)
    }"""
    check(graph(text, trips=np.asarray(4), go=np.asarray(True)), {"x": draw(2)})
