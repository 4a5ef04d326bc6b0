"""The view of real modules: what is read at every stage of the stock lowering; the orders it allows are legal."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax
from tvm.relax import op
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tests.graph.modules import Mixed, convolutional, stages
from tvm_ext.errors import GraphError, OptionError
from tvm_ext.graph import (
    DataflowGraph,
    Flops,
    Node,
    Tensor,
    from_relax,
    given_order,
    liveness,
    peak_bytes,
    random_order,
    symbol,
)

N, M = symbol("n"), symbol("m")


def nodes_by_name(graph: DataflowGraph) -> dict[str, Node]:
    return {node.name: node for node in graph.nodes}


@pytest.fixture(scope="module")
def mixed() -> DataflowGraph:
    return from_relax(Mixed)


@pytest.fixture(scope="module")
def lowered() -> dict[str, tvm.IRModule]:
    return stages(convolutional())


def test_every_binding_is_a_node_in_order(mixed):
    bindings = [binding for block in Mixed["main"].body.blocks for binding in block.bindings]
    assert len(mixed) == len(bindings)
    assert [node.op for node in mixed.nodes] == (
        "call_tir call match_cast shape_of zeros call_dps_packed tuple get_item get_item if print".split()
    )
    assert [node.callee for node in mixed.nodes[:6]] == ["scaled_exp", "doubled", "", "", "", "library.op"]
    assert [node.block for node in mixed.nodes] == [0] * 9 + [1, 1]


def test_tensors_have_shapes_bytes_and_kinds(mixed):
    assert mixed.inputs == ("x", "flag", "any_rank")
    assert mixed.tensors["x"] == Tensor("x", (N, 4), "float32", 16 * N, "input")
    assert mixed.tensors["flag"] == Tensor("flag", (), "bool", 1, "input")
    assert mixed.tensors["z"] == Tensor("z", (M, N), "float32", 4 * M * N)
    assert mixed.tensors["r"].kind == "output"
    assert mixed.tensors["s"].dtype == "shape"
    assert mixed.tensors["s"].nbytes == 0
    assert mixed.symbols == {"n", "m"}


def test_tuples_and_casts_are_aliases(mixed):
    assert mixed.tensors["c"].alias_of == "any_rank"
    assert mixed.tensors["any_rank"].nbytes == 16 * M  # the cast tells
    assert mixed.nodes[6].outputs == ("nested.0", "nested.1.0", "nested.1.1")
    assert mixed.storages["q"] == mixed.storages["inner.0"] == mixed.storages["nested.1.0"] == "p"
    assert mixed.storages["inner.1"] == "z"


def test_kernels_and_functions_count_in_the_sizes_of_the_caller(mixed):
    by_name = nodes_by_name(mixed)
    assert by_name["e"].flops == Flops(multiply=4 * N, other=4 * N)
    assert by_name["d"].flops == Flops(add=4 * N)
    assert by_name["d"].is_kernel
    assert by_name["d"].regions[0].tensors["a"].shape == (N, 4)
    assert mixed.unknown_flops == (by_name["p"],)
    assert mixed.bind({"n": 10, "m": 3}).flops.total == 200


def test_branches_see_the_variables_around_them(mixed):
    branch = nodes_by_name(mixed)["r"]
    assert branch.op == "if"
    assert branch.inputs == ("flag", "q", "d", "p")
    true, false = branch.regions
    assert true.inputs == ("q", "d")
    assert [node.op for node in true.nodes] == ["exp", "add"]
    assert true.tensors["q"].kind == "input"
    assert false.inputs == false.outputs == ("p",)
    assert branch.flops == Flops(add=4 * N, other=4 * N)
    # w and r_then are alive together inside the branch; n = 10
    profile = liveness(mixed.bind({"n": 10, "m": 3}))
    assert profile.during[9] - profile.during[8] == 2 * 160


def test_symbols_and_effects_order_what_no_tensor_orders(mixed):
    by_name = nodes_by_name(mixed)
    assert by_name["z"].inputs == ()
    assert by_name["z"].after == (2,)
    assert by_name["_"].has_effect
    assert by_name["_"].after == tuple(range(10))
    assert not any(node.has_effect for node in mixed.nodes[:10])


def test_the_same_network_at_every_stage(lowered):
    graphs = {stage: from_relax(mod) for stage, mod in lowered.items()}
    flops = {stage: graph.flops for stage, graph in graphs.items()}
    assert set(flops.values()) == {flops["high"]}
    assert not any(graph.unknown_flops or graph.unknown_bytes for graph in graphs.values())
    assert peak_bytes(graphs["high"]) == peak_bytes(graphs["legalized"]) == 2 * 16 * 32 * 32 * 4
    fused = peak_bytes(graphs["fused"])
    assert fused == peak_bytes(graphs["fused_tir"]) == peak_bytes(graphs["called"]) == 16 * 32 * 32 * 4 + 16384
    assert {t.shape for t in graphs["planned"].constants} == {(16, 3, 3, 3), (4096, 10)}


def allocated(graph: DataflowGraph) -> int:
    own = (t for t in graph.tensors.values() if t.alias_of is None and t.kind in ("intermediate", "output"))
    return sum(tensor.nbytes for tensor in own)


def test_allocated_bytes_are_those_of_the_memory_planner(lowered):
    text = relax.analysis.estimate_memory_usage(lowered["planned"])
    unplanned, planned = (float(found) * 2**30 for found in re.findall(r"total size ([0-9.e-]+) GB", text))
    assert allocated(from_relax(lowered["called"])) == pytest.approx(unplanned, rel=1e-3)
    assert allocated(from_relax(lowered["planned"])) == pytest.approx(planned, rel=1e-3)
    assert peak_bytes(from_relax(lowered["called"])) <= peak_bytes(from_relax(lowered["planned"])) <= planned * 1.001


def test_fusion_groups_show_what_they_hold(lowered):
    graph = from_relax(lowered["fused"])
    kernel = nodes_by_name(graph)[graph.nodes[0].name]
    assert kernel.callee == "fused_conv2d_relu"
    assert kernel.is_kernel
    assert [node.callee for node in kernel.regions[0].nodes] == ["conv2d", "relu"]
    assert kernel.attributes == {}


def test_operators_keep_their_attributes():
    node = from_relax(convolutional()).nodes[0]
    assert node.op == node.label == "nn.conv2d"
    assert node.attributes["padding"] == (1, 1, 1, 1)
    assert node.attributes["kernel_layout"] == "OIHW"
    assert node.attributes["groups"] == 1


def test_a_constant_used_twice_is_one_tensor():
    weight = relax.const(np.ones((4, 4), "float32"))
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(op.add(builder.emit(op.matmul(x, weight)), weight))
        builder.emit_func_output(y)
    graph = from_relax(builder.get())
    assert [tensor.nbytes for tensor in graph.constants] == [64]
    assert graph.consumers[graph.constants[0].name] == (0, 1)


def is_well_formed_in(order, func: relax.Function) -> bool:
    """Whether the function is well formed with the bindings of its only block in another order."""
    block = func.body.blocks[0]
    body = relax.SeqExpr([relax.DataflowBlock([block.bindings[index] for index in order])], func.body.body)
    changed = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
    return relax.analysis.check_well_formed(relax.transform.Normalize()(tvm.IRModule({"main": changed})))


@I.ir_module
class Symbolic:
    """Sizes that a cast makes known, used by nodes that do not read its result."""

    @R.function
    def main(x: R.Tensor(("n", 4), "float32"), u: R.Tensor(ndim=2, dtype="float32")):
        m = T.int64()
        with R.dataflow():
            a = R.exp(x)
            c = R.match_cast(u, R.Tensor((m, 4), "float32"))
            z = R.zeros(R.shape([m, 2]), "float32")
            b = R.add(a, x)
            y = R.ones(R.shape([m * 2]), "float32")
            v = R.sum(c, axis=[0])
            r = R.reshape(z, R.shape([m * 2]))
            w = R.add(y, r)
            R.output(b, v, w)
        return (b, v, w)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_every_order_the_view_allows_is_well_formed(seed):
    for mod in (Symbolic, convolutional()):
        assert is_well_formed_in(random_order(from_relax(mod), seed), mod["main"])


def test_an_order_the_view_forbids_is_not_well_formed():
    graph = from_relax(Symbolic)
    by_name = nodes_by_name(graph)
    cast, sized = by_name["c"].index, by_name["z"].index
    order = [index for index in given_order(graph) if index != cast]
    order.insert(order.index(sized) + 1, cast)  # after a node that uses the symbol it defines
    assert is_well_formed_in(given_order(graph), Symbolic["main"])
    assert not is_well_formed_in(order, Symbolic["main"])


@I.ir_module
class InPlace:
    @T.prim_func(private=True, s_tir=True)
    def accumulate(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
        for i in range(4):
            A[i] = A[i] + B[i]

    @R.function
    def main(x: R.Tensor((4,), "float32"), y: R.Tensor((4,), "float32")):
        cls = InPlace
        with R.dataflow():
            a = R.add(x, y)
            b = R.exp(a)
            c = R.call_tir_inplace(cls.accumulate, (a, y), inplace_indices=[0], out_ty=[R.Tensor((4,), "float32")])
            d = R.add(b, c)
            R.output(d)
        return d


def test_a_write_in_place_shares_bytes_and_waits_for_the_readers():
    graph = from_relax(InPlace)
    assert graph.tensors["c"].alias_of == "a"
    assert graph.nodes[2].after == (1,)
    assert graph.nodes[2].attributes["inplace_indices"] == (0,)
    assert graph.nodes[2].flops == Flops(add=4)
    assert liveness(graph).during.tolist() == [16, 32, 32, 48]


@I.ir_module
class Calls:
    """Packed functions, a local function, a recursion, a cycle of functions."""

    @R.function(pure=False)
    def countdown(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        cls = Calls
        y = R.add(x, x)
        z = cls.countdown(y)
        return z

    @R.function(pure=False)
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        cls = Calls

        @R.function
        def local(a: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            b = R.multiply(a, x)
            return b

        y = local(x)
        p = R.call_packed("library.print", y, ty_args=R.Tensor((4,), "float32"))
        q = R.call_pure_packed("library.scale", p, ty_args=R.Tensor((4,), "float32"))
        z = cls.countdown(q)
        return z


def test_calls_of_all_kinds():
    graph = from_relax(Calls)
    assert [node.op for node in graph.nodes] == ["function", "call", "call_packed", "call_pure_packed", "call"]
    local, call, packed, pure, recursive = graph.nodes
    assert local.regions[0].inputs == ("a", "x")
    assert local.inputs == ("x",)
    assert call.callee == "local"
    assert call.inputs == ("local", "x")
    assert call.flops == Flops(multiply=4)
    assert (packed.callee, packed.has_effect, packed.flops) == ("library.print", True, None)
    assert (pure.callee, pure.has_effect, pure.inputs) == ("library.scale", False, ("p",))
    assert recursive.callee == "countdown"
    assert recursive.flops is None  # it calls itself for ever
    assert recursive.regions[0].nodes[1].regions == ()
    assert recursive.has_effect
    assert recursive.after == (2, 3)


def test_an_operator_without_a_row_is_read_like_any_other():
    x = relax.Var("x", relax.TensorType((8,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            found = builder.emit_output(op.unique(x))
        builder.emit_func_output(found)
    graph = from_relax(builder.get())
    assert graph.nodes[0].op == "unique"
    assert graph.nodes[0].flops is None
    assert [tensor.name for tensor in graph.unknown_bytes] == [graph.outputs[0]]


def test_a_function_without_a_module():
    func = convolutional()["main"]
    assert from_relax(func).flops == from_relax(convolutional()).flops
    inner = Mixed["main"].body.blocks[1].bindings[0].value.true_branch
    free = relax.Function([], inner, R.Tensor(ndim=2, dtype="float32"))
    assert from_relax(free).inputs == ("q", "d")


def test_a_value_returned_untouched_and_a_shape_returned():
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    func = relax.Function([x], relax.Tuple([x, relax.ShapeExpr([4]), x]), None)
    graph = from_relax(func)
    assert len(graph) == 0
    assert graph.outputs == ("x", "constant_0", "x")
    assert graph.constants == ()
    assert graph.tensors["x"].kind == "input"


def test_two_variables_of_one_name():
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    twin = relax.Var("x", relax.TensorType((4,), "float32"))
    block = relax.BindingBlock([relax.VarBinding(twin, op.exp(x))])
    graph = from_relax(relax.Function([x], relax.SeqExpr([block], twin), relax.TensorType((4,), "float32")))
    assert graph.inputs == ("x",)
    assert graph.outputs == ("x_1",)


def test_what_cannot_be_read_is_refused():
    with pytest.raises(OptionError, match=r"no Relax function 'forward'; its Relax functions: doubled, main"):
        from_relax(Mixed, "forward")
    with pytest.raises(OptionError, match="no Relax function 'scaled_exp'"):
        from_relax(Mixed, "scaled_exp")
    with pytest.raises(OptionError, match=r"from an IRModule or a relax\.Function, not from str"):
        from_relax("model.onnx")
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    nested = relax.Function([x], op.exp(op.exp(x)), relax.TensorType((4,), "float32"))
    with pytest.raises(GraphError, match=r"an operand is itself a computation \(Call\); run relax.transform.Normalize"):
        from_relax(nested)
    normalized = relax.transform.Normalize()(tvm.IRModule({"main": nested.with_attr("global_symbol", "main")}))
    assert [node.op for node in from_relax(normalized).nodes] == ["exp", "exp"]


def test_two_thousand_bindings_take_well_under_a_second_per_thousand():
    x = relax.Var("x", relax.TensorType((1, 16, 32, 32), "float32"))
    weight = relax.const(np.zeros((16, 16, 3, 3), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for _ in range(400):
                rectified = builder.emit(op.nn.relu(builder.emit(op.nn.conv2d(y, weight, padding=1))))
                halves = builder.emit(op.split(rectified, 2, axis=1))
                y = builder.emit(op.concat([builder.emit(halves[1]), builder.emit(halves[0])], 1))
            result = builder.emit_output(op.add(y, x))
        builder.emit_func_output(result)
    mod = builder.get()
    start = time.process_time()
    graph = from_relax(mod)
    liveness(graph)
    seconds = time.process_time() - start
    assert len(graph) > 2000
    assert seconds < 2.0


def test_a_cast_of_a_computation_in_one_binding() -> None:
    """As importers write ``NonZero``: the cast names the extent that only a run tells."""
    n, found = tvm.tirx.Var("n", "int64"), tvm.tirx.Var("found", "int64")
    x = relax.Var("x", relax.TensorType([n, 4], "bool"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        places = builder.match_cast(relax.op.nonzero(x), relax.TensorType([2, found], "int64"))
        builder.emit_func_output(builder.emit(relax.op.negative(places)))
    graph = from_relax(builder.get())
    assert [node.op for node in graph.nodes] == ["nonzero", "negative"]
    assert [str(dim) for dim in graph.tensors[graph.nodes[0].outputs[0]].shape] == ["2", "found"]
    assert not graph.unknown_bytes
