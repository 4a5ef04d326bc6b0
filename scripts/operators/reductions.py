"""Sums, norms, and whatever else a row or a column decides."""

from __future__ import annotations

from scripts.operators.case import Case, positive, wide


def _rows(operator: str, columns: int) -> Case:
    return Case(
        f"{operator.lower()}_rows_of_{columns}",
        f"(float[500,{columns}] x) => (y) <int64[1] axes = {{-1}}> {{ y = {operator}<keepdims=0>(x, axes) }}",
        opset=18,
    )


def _columns(operator: str, columns: int) -> Case:
    return Case(
        f"{operator.lower()}_{columns}_columns",
        f"(float[500,{columns}] x) => (y) <int64[1] axes = {{0}}> {{ y = {operator}<keepdims=0>(x, axes) }}",
        opset=18,
    )


COLUMNS = (128, 1000, 1024, 2048, 4096)

REDUCTIONS = (
    *(_rows("ReduceSum", columns) for columns in COLUMNS),
    *(_columns("ReduceMean", columns) for columns in COLUMNS),
    _rows("ReduceMax", 1000),
    _rows("ReduceL2", 768),
    Case("reduce_middle", "(float[16,256,300] x) => (y) { y = ReduceMax<axes=[1]>(x) }"),
    Case("reduce_all", "(float[1000,1000] x) => (y) { y = ReduceSum(x) }", {"x": positive}),
    Case("argmax_channels", "(float[1,21,256,256] x) => (y) { y = ArgMax<axis=1>(x) }"),
    Case("argmax_last", "(float[128,1000] x) => (y) { y = ArgMax<axis=-1>(x) }"),
    Case("cumulative_rows", "(float[256,1000] x) => (y) <int64 a = {1}> { y = CumSum(x, a) }"),
    Case("cumulative_columns", "(float[256,1000] x) => (y) <int64 a = {0}> { y = CumSum(x, a) }"),
    Case("hardmax_last", "(float[128,1000] x) => (y) { y = Hardmax(x) }"),
    Case("hardmax_channels", "(float[1,21,128,128] x) => (y) { y = Hardmax<axis=1>(x) }"),
    Case("top_5", "(float[128,1000] x) => (y, i) <int64[1] k = {5}> { y, i = TopK<axis=-1>(x, k) }"),
    Case("top_8_short", "(float[512,64] x) => (y, i) <int64[1] k = {8}> { y, i = TopK<axis=-1>(x, k) }"),
    Case("top_100", "(float[16,8400] x) => (y, i) <int64[1] k = {100}> { y, i = TopK<axis=-1>(x, k) }"),
)

NORMS = (
    Case("softmax_30522", "(float[8,30522] x) => (y) { y = Softmax<axis=-1>(x) }"),
    Case("softmax_channels", "(float[1,21,256,256] x) => (y) { y = Softmax<axis=1>(x) }"),
    Case("softmax_197", "(float[12,197,197] x) => (y) { y = Softmax<axis=-1>(x) }", {"x": wide}),
    Case("log_softmax", "(float[128,1000] x) => (y) { y = LogSoftmax<axis=-1>(x) }", {"x": wide}),
    Case("layer_norm", "(float[512,768] x) => (y) <float[768] s, float[768] b> { y = LayerNormalization(x, s, b) }"),
    Case(
        "rms_norm",
        """(float[512,768] x) => (y) <float[768] s, float e = {0.00001}> {
            a = Mul(x, x) m = ReduceMean<axes=[-1]>(a) v = Add(m, e) r = Sqrt(v) n = Div(x, r) y = Mul(n, s)
        }""",
    ),
    Case(
        "instance_norm",
        "(float[1,64,128,128] x) => (y) <float[64] s, float[64] b> { y = InstanceNormalization(x, s, b) }",
    ),
    Case(
        "instance_norm_1d",
        "(float[2,128,1000] x) => (y) <float[128] s, float[128] b> { y = InstanceNormalization(x, s, b) }",
    ),
    Case(
        "group_norm",
        """(float[1,320,32,32] x) => (float[1,320,32,32] y) <float[320] s, float[320] b> {
            y = GroupNormalization<num_groups=32>(x, s, b)
        }""",
        opset=21,
    ),
    Case(
        "group_norm_silu_in_nodes",
        """(float[1,320,32,32] x) => (y) <float[320,1,1] g, float[32] o, float[32] z,
        int64[3] groups = {0, 32, -1}, int64[4] shape = {1, 320, 32, 32}> {
            a = Reshape(x, groups) b = InstanceNormalization(a, o, z) c = Reshape(b, shape)
            d = Mul(c, g) e = Add(d, g) f = Sigmoid(e) y = Mul(e, f)
        }""",
        {"o": positive},
    ),
    Case(
        "softmax_float64",
        "(double[128,1000] x) => (y) { y = Softmax<axis=-1>(x) }",
    ),
)
