from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.frontend.onnx.text import graph
from tvm_ext.compiler import compile
from tvm_ext.errors import ModelError, UnsupportedOperatorError
from tvm_ext.frontend import import_model
from tvm_ext.frontend.onnx.check import check_graph

IF = """
g (bool c, float[2] x) => (float[2] y) {
  y = If (c) <
    then_branch = a () => (float[2] t) { t = %s },
    else_branch = b () => (float[2] e) { e = Neg (x) }
  >
}
"""


def refused(model: onnx.ModelProto) -> str:
    with pytest.raises(ModelError) as caught:
        check_graph(model, "m.onnx")
    message = str(caught.value)
    assert message.startswith("m.onnx: ")
    return message


def test_sound_graphs_pass() -> None:
    check_graph(graph("g (float[2] x) => (float[2] y) { h = Neg (x) y = Relu (h) }"), "m.onnx")
    check_graph(graph(IF % "Relu (x)"), "m.onnx")


def test_nodes_need_not_be_sorted() -> None:
    model = graph("g (float[2] x) => (float[2] y) { h = Neg (x) y = Relu (h) }")
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    check_graph(model, "m.onnx")


def test_unmade_tensor_names_the_reader() -> None:
    message = refused(graph("g (float[2] x) => (float[2] y) { [last] y = Add (x, w) }"))
    assert "nothing makes tensor 'w', which Add node 'last' reads" in message


def test_unmade_tensor_in_a_branch() -> None:
    assert "nothing makes tensor 'w', which If node that makes 'y' reads" in refused(graph(IF % "Relu (w)"))


def test_unmade_output() -> None:
    assert "nothing makes output 'z' of the graph" in refused(graph("g (float[2] x) => (float[2] z) { y = Neg (x) }"))


def test_cycle() -> None:
    message = refused(graph("g (float[2] x) => (float[2] b) { a = Add (x, b) b = Neg (a) }"))
    assert "the nodes that make 'a', 'b' depend on each other" in message


def test_tensor_made_twice() -> None:
    message = refused(graph("g (float[2] x) => (float[2] y) { y = Neg (x) y = Relu (x) }"))
    assert "tensor 'y' is made by more than one node" in message


def test_input_made_again() -> None:
    assert "tensor 'x' is made by more" in refused(graph("g (float[2] x) => (float[2] y) { x = Neg (x) y = Relu (x) }"))


def test_no_outputs() -> None:
    model = graph("g (float[2] x) => (float[2] y) { y = Neg (x) }")
    del model.graph.output[:]
    assert "the graph has no outputs" in refused(model)


def test_unnamed_input() -> None:
    model = graph("g (float[2] x) => (float[2] y) { y = Neg (x) }")
    model.graph.input.add()
    assert "an input or output of the graph has no name" in refused(model)


def test_output_listed_twice() -> None:
    model = graph("g (float[2] x) => (float[2] y, float[2] y) { y = Neg (x) }")
    assert "output 'y' is listed twice" in refused(model)


def test_attribute_faults_are_listed_together() -> None:
    message = refused(
        graph("g (float[1,1,4,4] x) => (float[1,1,4,4] y) { [a] h = MaxPool <kernal = [2,2]> (x) [b] y = Relu (h, h) }")
    )
    assert "MaxPool node 'a': Unrecognized attribute: kernal for operator MaxPool" in message
    assert "Relu node 'b': Node(b) with schema(::Relu:14) has input size 2 not in range [min=1, max=1]" in message


def test_a_required_input_left_out() -> None:
    model = graph("g (float[2] x) => (float[2] y) { [join] y = Concat <axis = 0> (x) }")
    model.graph.node[0].input.append("")
    message = refused(model)
    assert "Concat node 'join': its input inputs is left out, but it is not optional" in message


def test_many_faults_are_counted() -> None:
    nodes = " ".join(f"y{index} = Neg (w{index})" for index in range(9))
    assert "'w0', 'w1', 'w2', 'w3', 'w4', and 4 more" in refused(
        graph(f"g (float[2] x) => (float[2] y8) {{ {nodes} }}")
    )


def test_unknown_operators_are_not_faults_of_the_graph() -> None:
    check_graph(graph("g (float[2] x) => (float[2] y) { h = Nonesuch (x) y = com.acme.Widget (h) }"), "m.onnx")


@pytest.mark.parametrize("callee", ["f", "h"])
def test_functions_that_call_themselves(callee: str) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21, "l": 1]> g (float[3] x) => (float[3] y) {{ y = l.f (x) }}
        <domain: "l", opset_import: ["": 21, "l": 1]> f (a) => (b) {{ c = Neg (a) b = l.{callee} (c) }}
        <domain: "l", opset_import: ["": 21, "l": 1]> h (a) => (b) {{ b = l.f (a) }}
        <domain: "l", opset_import: ["": 21]> k (a) => (b) {{ b = Neg (a) }}"""
    )
    assert "function 'f', 'h' calls itself, perhaps by way of others" in refused(model)


@pytest.mark.parametrize(
    ("node", "extent"),
    [
        ("p = Constant<value=int64[8]{0,0,-2,0,0,0,-2,0}>() y = Pad(x, p)", -1),
        ("y = MaxPool<kernel_shape=[5,5]>(x)", -1),
        ("y = AveragePool<kernel_shape=[2147483648,1]>(x)", 4 - 2**31),
        ("w = Constant<value=float[1,1,5,1]{1.,1.,1.,1.,1.}>() y = Conv(x, w)", -1),
        ("w = Constant<value=float[1,1,1,1]{1.}>() y = ConvTranspose<pads=[4,4,4,4]>(x, w)", -5),
    ],
)
def test_negative_extents(node: str, extent: int) -> None:
    model = graph(f"g (float[1,1,3,3] x) => (float[a,b,c,d] y) {{ {node} }}")
    with pytest.raises(
        ModelError, match=rf"node that makes 'y': its result 'y' .* extent of {extent}; .* larger input"
    ):
        import_model(model)


def test_a_node_without_a_schema_that_lacks_an_input() -> None:
    model = graph('g (float[1,1,3,3] x) => (float[a,b,c,d] y) { y = com.microsoft.FusedConv<activation="Relu">(x) }')
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(UnsupportedOperatorError, match=r"FusedConv node .* lacks an input that it needs: 1 is given"):
        import_model(model)


@pytest.mark.parametrize("node", ["ReduceMean<axes=[0], keepdims=0>(x)", "ReduceSum<axes=[0], keepdims=0>(x)"])
def test_reductions_over_nothing(node: str) -> None:
    model = graph(f"g (float[0,3] x) => (float[n] y) {{ y = {node} }}", opset=11)
    found = compile(model).run({"x": np.zeros((0, 3), np.float32)})["y"]
    np.testing.assert_array_equal(found, [np.nan if "Mean" in node else 0] * 3)
