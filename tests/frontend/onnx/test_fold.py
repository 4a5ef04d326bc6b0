"""Folding, checked by what is left of the graph and by comparing with the original in onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.frontend.onnx.text import graph, loaded, operators
from tvm_ext.errors import ModelError
from tvm_ext.frontend.onnx.model import load_onnx
from tvm_ext.frontend.onnx.prepare import PreparedModel, prepare
from tvm_ext.frontend.onnx.verify import verify_prepared


def prepared(text: str, opset: int = 17, shapes: dict[str, list[int]] | None = None, **weights: Any) -> PreparedModel:
    """Prepare a graph and compare the result with the original."""
    model = loaded(text, opset, **weights)
    result = prepare(model, shapes)
    assert verify_prepared(model, result) == 0.0
    return result


def test_shape_arithmetic() -> None:
    result = prepared(
        """g (float[batch,3,h,w] x) => (float[a,b] y) {
          shape = Shape (x)
          zero = Constant <value_int = 0> ()
          batch = Gather <axis = 0> (shape, zero)
          axes = Constant <value_ints = [0]> ()
          row = Unsqueeze (batch, axes)
          rest = Constant <value_ints = [-1]> ()
          new = Concat <axis = 0> (row, rest)
          y = Reshape (x, new)
        }""",
        shapes={"x": [2, 3, 4, 5]},
    )
    assert operators(result.skeleton) == ["Reshape"]
    assert [spec.shape for spec in result.inputs] == [(2, 3, 4, 5)]
    assert known_outputs(result) == [[2, 60]]
    assert "folded 4 nodes into constants" in result.notes


def known_outputs(result: PreparedModel) -> list[list[int]]:
    return [[dim.dim_value for dim in output.type.tensor_type.shape.dim] for output in result.skeleton.graph.output]


def test_part_of_a_shape_needs_only_that_part() -> None:
    # The first dimension of NonZero's result depends on values, the second is the rank.
    result = prepared(
        """g (float[2,3] x) => (int64[n] y) {
          places = NonZero (x)
          y = Shape <start = 0, end = 1> (places)
        }"""
    )
    assert operators(result.skeleton) == []
    result = prepared(
        """g (float[2,3] x) => (int64[n] y) {
          places = NonZero (x)
          y = Shape <start = 1> (places)
        }"""
    )
    assert operators(result.skeleton) == ["NonZero", "Shape"]


def test_nodes_that_change_nothing() -> None:
    result = prepared(
        """g (float[2,3] x) => (float[2,3] y) {
          a = Identity (x)
          b = Cast <to = 1> (a)
          c = Transpose <perm = [0,1]> (b)
          d = Dropout (c)
          e = Concat <axis = 0> (d)
          none = Constant <value_ints = [0,0,0,0]> ()
          f = Pad (e, none)
          same = Constant <value_ints = [2,3]> ()
          g = Reshape (f, same)
          h = Expand (g, same)
          y = Relu (h)
        }"""
    )
    assert operators(result.skeleton) == ["Relu"]
    assert list(result.skeleton.graph.node[0].input) == ["x"]
    assert "removed 8 nodes that change nothing" in result.notes


def test_nodes_that_look_as_if_they_changed_nothing() -> None:
    text = """g (float[3,3] x) => (float[3,3] y, float[3,3] z) {
      t = Transpose <perm = [1,0]> (x)
      y = Relu (t)
      shift = Constant <value_ints = [1,0,-1,0]> ()
      moved = Pad (x, shift)
      z = Relu (moved)
    }"""
    assert operators(prepared(text).skeleton) == ["Transpose", "Relu", "Pad", "Relu"]


def test_an_output_keeps_its_name_whatever_it_is() -> None:
    result = prepared(
        """g (float[2] x) => (float[2] same, float[2] fixed, int64[1] shape, float[2] x) {
          same = Identity (x)
          fixed = Constant <value_floats = [1.0, 2.0]> ()
          shape = Shape (x)
        }"""
    )
    assert [output.name for output in result.skeleton.graph.output] == ["same", "fixed", "shape", "x"]
    assert operators(result.skeleton) == ["Identity"]
    np.testing.assert_array_equal(result.constants["shape"].array, [2])


def test_unused_things_go() -> None:
    result = prepared(
        "g (float[2] x, float[2] unused) => (float[2] y) { dead = Exp (x) y = Neg (x) }", w=np.ones(3, "float32")
    )
    assert operators(result.skeleton) == ["Neg"]
    assert not result.constants
    assert [spec.name for spec in result.inputs] == ["x", "unused"]  # the interface stays


def test_optional_outputs_that_nothing_reads_go() -> None:
    result = prepared("g (float[1,1,4,4] x) => (float[1,1,3,3] y) { y, indices = MaxPool <kernel_shape = [2,2]> (x) }")
    assert list(result.skeleton.graph.node[0].output) == ["y"]
    result = prepared("g (float[4] x) => (float[2] y) { y, rest = Split <axis = 0> (x) }", opset=13)
    assert len(result.skeleton.graph.node[0].output) == 2  # not optional: their number is what Split goes by


def test_integer_weights_stay_quantised() -> None:
    result = prepared(
        """g (float[2,4] x) => (float[2,4] y) {
          w = DequantizeLinear (q, scale)
          y = MatMul (x, w)
        }""",
        q=np.arange(16, dtype="int8").reshape(4, 4),
        scale=np.asarray(0.5, "float32"),
    )
    assert operators(result.skeleton) == ["DequantizeLinear", "MatMul"]


class TestIf:
    BRANCHES = """
      y = If (c) <
        then_branch = a () => (float[k] t) { n = Neg (x) t = Mul (n, two) },
        else_branch = b () => (float[k] e) { n = Abs (x) e = Add (n, two) }
      >"""
    two = np.asarray(2.0, "float32")

    @pytest.mark.parametrize(("taken", "left"), [(True, ["Neg", "Mul"]), (False, ["Abs", "Add"])])
    def test_known_condition(self, taken: bool, left: list[str]) -> None:
        text = f"g (float[3] x) => (float[3] y) {{ {self.BRANCHES} }}"
        result = prepared(text, c=np.asarray(taken), two=self.two)
        assert operators(result.skeleton)[:2] == left
        assert "replaced 1 If node by the branch taken" in result.notes

    def test_condition_that_follows_from_a_shape(self) -> None:
        text = f"""g (float[n] x) => (float[m] y) {{
          size = Size (x)
          three = Constant <value_int = 3> ()
          c = Equal (size, three)
          {self.BRANCHES}
        }}"""
        assert operators(prepared(text, two=self.two, shapes={"x": [3]}).skeleton)[0] == "Neg"
        assert operators(prepared(text, two=self.two, shapes={"x": [4]}).skeleton)[0] == "Abs"

    def test_unknown_condition_keeps_both(self) -> None:
        text = f"g (float[3] x, bool c) => (float[3] y) {{ {self.BRANCHES} }}"
        result = prepared(text, two=self.two)
        assert operators(result.skeleton) == ["If"]
        assert set(result.constants) == {"two"}

    def test_both_branches_are_folded(self) -> None:
        result = prepared(
            """g (float[3] x, bool c) => (float[3] y) {
              y = If (c) <
                then_branch = a () => (float[k] t) { s = Shape (x) d = ConstantOfShape (s) t = Add (x, d) },
                else_branch = b () => (float[k] e) { e = Identity (x) }
              >
            }"""
        )
        (node,) = result.skeleton.graph.node
        assert [[inner.op_type for inner in item.g.node] for item in node.attribute] == [["Add"], ["Identity"]]
        assert known_outputs(result) == [[3]]

    def test_nested_and_alike(self) -> None:
        # Sibling branches may use the same names; put into one graph, they must not collide.
        one = """If (c) <
            then_branch = a () => (float[3] t) { n = Neg (x) t = If (d) <
               then_branch = aa () => (float[3] u) { m = Abs (n) u = Neg (m) },
               else_branch = ab () => (float[3] v) { v = Exp (n) } > },
            else_branch = b () => (float[3] e) { e = Exp (x) }
          >"""
        text = f"g (float[3] x, bool d) => (float[3] y) {{ p = {one} q = {one} y = Sub (p, q) }}"
        result = prepared(text, c=np.asarray(True))
        assert operators(result.skeleton) == ["Neg", "If", "Neg", "If", "Sub"]

    def test_a_branch_that_cannot_run_is_left_out(self) -> None:
        model = loaded(
            """g (float[n,4] x, bool flat) => (float[a,b] y) {
              y = If (flat) <
                then_branch = a () => (float[p,q] t) { t = MatMul (x, w) },
                else_branch = b () => (float[p,q] e) { e = MatMul (x, v) }
              >
            }""",
            w=np.ones((4, 2), "float32"),
            v=np.ones((5, 2), "float32"),
        )
        result = prepare(model, {"x": [3, 4]})
        assert operators(result.skeleton)[0] == "MatMul"
        (note,) = [note for note in result.notes if note.startswith("left out")]
        assert "the else branch of If node that makes 'y', which cannot run with these input shapes" in note

    def test_no_branch_can_run(self) -> None:
        text = f"g (float[3] x, bool c) => (float[3] y) {{ {self.BRANCHES} }}"
        with pytest.raises(ModelError, match="If node that makes 'y': Mul node that makes 't'"):
            prepare(loaded(text, two=np.ones(5, "float32")))


class TestLoop:
    TEXT = """g (float[2,3] x) => (float[2,3] last, float[n,2,3] all) {
      last, all = Loop (trips, go, x) <
        body = step (int64 i, bool c, float[2,3] s) => (bool d, float[2,3] next, float[2,3] seen) {
          d = Identity (c)
          f = Cast <to = 1> (i)
          p = Add (s, f)
          next = Tanh (p)
          seen = Neg (next)
        }
      >
    }"""

    @pytest.mark.parametrize("opset", [11, 13, 17])
    def test_is_unrolled(self, opset: int) -> None:
        result = prepared(self.TEXT, opset, trips=np.asarray(4), go=np.asarray(True))
        assert operators(result.skeleton).count("Tanh") == 4
        assert "unrolled 1 Loop node" in result.notes
        assert known_outputs(result)[1] == [4, 2, 3]

    def test_the_condition_ends_it(self) -> None:
        text = """g (float[3] x) => (float[3] y) {
          none = Constant <value_int = 100> ()
          y = Loop (none, go, x) <
            body = step (int64 i, bool c, float[3] s) => (bool d, float[3] t) {
              three = Constant <value_int = 3> ()
              d = Less (i, three)
              t = Exp (s)
            }
          >
        }"""
        assert operators(prepared(text, go=np.asarray(True)).skeleton).count("Exp") == 4

    @pytest.mark.parametrize("trips", [257, 10**15])
    def test_too_many_iterations(self, trips: int) -> None:
        model = loaded(self.TEXT, trips=np.asarray(trips), go=np.asarray(True))
        assert operators(prepare(model).skeleton) == ["Loop"]

    def test_iterations_that_depend_on_an_input(self) -> None:
        model = loaded(self.TEXT.replace("(float[2,3] x)", "(float[2,3] x, int64 trips)", 1), go=np.asarray(True))
        assert operators(prepare(model).skeleton) == ["Loop"]


class TestDefinitions:
    def test_of_onnx(self) -> None:
        model = loaded("g (float[3] x) => (float[3] y) { y = Celu <alpha = 2.0> (x) }")
        result = prepare(model, is_supported=lambda node: node.op_type != "Celu")
        assert "Celu" not in operators(result.skeleton)
        assert "expanded 1 Celu node by its definition" in result.notes
        assert verify_prepared(model, result) < 1e-6
        assert set(result.labels.values()) >= {"Celu node that makes 'y': Elu"}

    def test_of_onnx_that_depend_on_types(self) -> None:
        model = loaded(
            "g (float[4,6] x) => (float[4,6] y) { y = LayerNormalization <axis = 0> (x, w, b) }",
            w=np.linspace(0, 1, 24, dtype="float32").reshape(4, 6),
            b=np.ones((4, 6), "float32"),
        )
        result = prepare(model, is_supported=lambda node: node.op_type != "LayerNormalization")
        assert "ReduceMean" in operators(result.skeleton)
        assert verify_prepared(model, result) < 1e-5

    def test_of_the_model(self) -> None:
        model = graph("g (float[3] x) => (float[3] y) { h = com.acme.Scale <by = 3.0> (x) y = com.acme.Scale (h) }")
        function = onnx.parser.parse_function(
            """<domain: "com.acme", opset_import: ["" : 17]>
            Scale <by: float = 2.0> (v) => (w) { f = Constant <value_float: float = @by> () w = Mul (v, f) }"""
        )
        model.functions.append(function)
        source = load_onnx(model)
        result = prepare(source)
        assert operators(result.skeleton) == ["Mul", "Mul", "Identity"]
        assert sorted(float(value.array) for value in result.constants.values()) == [2.0, 3.0]
        assert verify_prepared(source, result) == 0.0

    def test_of_the_model_in_another_opset(self) -> None:
        model = graph("g (float[3] x) => (float[3] y) { y = com.acme.Twice (x) }")
        model.functions.append(
            onnx.parser.parse_function(
                '<domain: "com.acme", opset_import: ["" : 12]> Twice (v) => (w) { w = Add (v, v) }'
            )
        )
        with pytest.raises(
            ModelError, match=r"function 'Twice' uses version 12 of the operator set ai\.onnx, the model"
        ):
            prepare(load_onnx(model))


class TestLimits:
    def test_constants_that_would_fill_the_memory(self) -> None:
        model = loaded("g (float[1] x) => (float[1] y) { b = ConstantOfShape (s) y = Gather (b, i) }",
                       s=np.asarray([2**40]), i=np.asarray([0]))  # fmt: skip
        with pytest.raises(ModelError, match=r"its constant result would take another 4398\.0 GB of memory"):
            prepare(model)

    @pytest.mark.parametrize("axis", [-9, 5, 2**31])
    def test_axes_out_of_range(self, axis: int) -> None:
        text = f"g (float[2,3] x) => (float[2,3] y) {{ [norm] y = LayerNormalization <axis = {axis}> (x, w) }}"
        with pytest.raises(ModelError, match=f"LayerNormalization node 'norm': axis {axis} is out of range"):
            prepare(loaded(text, w=np.ones(3, "float32")))

    def test_parts_of_a_split(self) -> None:
        with pytest.raises(ModelError, match="it splits into 1 parts and has 2 outputs"):
            prepare(loaded("g (float[4] x) => (float[2] y, float[2] z) { y, z = Split <num_outputs = 1> (x) }", 18))


def test_shapes_that_do_not_fit_are_named() -> None:
    text = "g (float[batch,n] x) => (float[a,b] y) { [fc] y = MatMul (x, w) }"
    with pytest.raises(ModelError) as caught:
        prepare(loaded(text, w=np.ones((4, 2), "float32")), {"x": [1, 5]})
    assert "MatMul node 'fc'" in str(caught.value)
    assert "do the input shapes (x: [1, 5]) fit the model?" in str(caught.value)


def test_names_and_labels() -> None:
    result = prepare(loaded("g (float[2] x) => (float[2] y) { [same] a = Neg (x) [same] b = Exp (a) y = Abs (b) }"))
    names = [node.name for node in result.skeleton.graph.node]
    assert len(set(names)) == 3
    assert [result.labels[name] for name in names] == [
        "Neg node 'same'",
        "Exp node 'same'",
        "Abs node that makes 'y'",
    ]


def test_unsorted_nodes() -> None:
    model = graph("g (float[2] x) => (float[2] y) { a = Neg (x) b = Exp (a) y = Abs (b) }")
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([nodes[2], nodes[0], nodes[1]])
    assert operators(prepare(load_onnx(model)).skeleton) == ["Neg", "Exp", "Abs"]
