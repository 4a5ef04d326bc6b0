"""Products of matrices, attention, and layers that read a sequence."""

from __future__ import annotations

from scripts.operators.case import Case

_LAYERS = "\n".join(f"g{i} = Gemm(x{i}, w{i}, b{i}) x{i + 1} = Relu(g{i})" for i in range(4))
_WEIGHTS = ", ".join(f"float[{300 if i else 100},300] w{i}, float[300] b{i}" for i in range(4))

PRODUCTS = (
    Case("one_row_30000", "(float[1,512] x) => (y) <float[512,30000] w> { y = MatMul(x, w) }"),
    Case("one_row_transposed", "(float[1,768] x) => (y) <float[3072,768] w> { y = Gemm<transB=1>(x, w) }"),
    Case("odd_sizes", "(float[127,333] x) => (y) <float[333,257] w> { y = MatMul(x, w) }"),
    Case("batch_odd_sizes", "(float[7,33,65] x, float[7,65,17] z) => (y) { y = MatMul(x, z) }"),
    Case("batch_197", "(float[12,197,64] x, float[12,64,197] z) => (y) { y = MatMul(x, z) }"),
    Case("both_given_512", "(float[512,512] x, float[512,512] z) => (y) { y = MatMul(x, z) }"),
    Case("both_transposed", "(float[300,200] x, float[250,300] z) => (y) { y = Gemm<transA=1, transB=1>(x, z) }"),
    Case("product_float64", "(double[128,256] x) => (y) <double[256,256] w> { y = MatMul(x, w) }"),
    Case(
        "graph_convolution",
        """(float[500,100] x) => (y) <float[500,500] a, float[100,64] w> {
            b = MatMul(a, x) c = MatMul(b, w) y = Relu(c)
        }""",
    ),
    Case("four_layers_64_rows", f"(float[64,100] x0) => (x4) <{_WEIGHTS}> {{ {_LAYERS} }}"),
    Case("four_layers_one_row", f"(float[1,100] x0) => (x4) <{_WEIGHTS}> {{ {_LAYERS} }}"),
    Case(
        "einsum_attention",
        """(float[2,8,128,64] x, float[2,8,128,64] z) => (y) {
            y = Einsum<equation="bhid,bhjd->bhij">(x, z)
        }""",
    ),
    Case(
        "einsum_graph",
        """(float[1,64,50,25] x) => (y) <float[64,25,25] w> { y = Einsum<equation="nctw,cvw->nctv">(x, w) }""",
    ),
    Case(
        "einsum_three",
        """(float[64,96] x, float[64,80] z) => (y) <float[96,80] w> { y = Einsum<equation="bi,ij,bj->b">(x, w, z) }""",
    ),
)

_SHAPES = "int64[4] shape = {1, 128, 6, 64}, int64[3] flat = {1, 128, 384}"

SEQUENCES = (
    Case(
        "lstm_256",
        """(float[64,1,256] x) => (y) <float[1,1024,256] w, float[1,1024,256] r, float[1,2048] b> {
            y = LSTM<hidden_size=256>(x, w, r, b)
        }""",
    ),
    Case(
        "lstm_both_ways_batch_16",
        """(float[50,16,64] x) => (y) <float[2,512,64] w, float[2,512,128] r, float[2,1024] b> {
            y = LSTM<hidden_size=128, direction="bidirectional">(x, w, r, b)
        }""",
    ),
    Case(
        "gru_128",
        """(float[100,4,80] x) => (y) <float[1,384,80] w, float[1,384,128] r, float[1,768] b> {
            y = GRU<hidden_size=128, linear_before_reset=1>(x, w, r, b)
        }""",
    ),
    Case(
        "attention_197",
        """(float[4,6,197,64] q, float[4,6,64,197] k, float[4,6,197,64] v) => (y) {
            s = MatMul(q, k) p = Softmax<axis=-1>(s) y = MatMul(p, v)
        }""",
    ),
    Case(
        "self_attention_128",
        f"""(float[1,128,384] x) => (y)
        <float[384,384] wq, float[384,384] wk, float[384,384] wv, float[384,384] wo, {_SHAPES}, float c = {{0.125}}> {{
            q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv)
            qs = Reshape(q, shape) ks = Reshape(k, shape) vs = Reshape(v, shape)
            qt = Transpose<perm=[0,2,1,3]>(qs) kt = Transpose<perm=[0,2,3,1]>(ks) vt = Transpose<perm=[0,2,1,3]>(vs)
            s = MatMul(qt, kt) m = Mul(s, c) p = Softmax<axis=-1>(m) o = MatMul(p, vt)
            back = Transpose<perm=[0,2,1,3]>(o) of = Reshape(back, flat) y = MatMul(of, wo)
        }}""",
    ),
    Case(
        "rotary_embedding",
        """(float[1,8,256,64] x) => (y) <float[256,64] cos, float[256,64] sin, int64[2] halves = {32, 32}> {
            a, b = Split<axis=-1>(x, halves) c = Neg(b) d = Concat<axis=-1>(c, a)
            e = Mul(x, cos) f = Mul(d, sin) y = Add(e, f)
        }""",
    ),
)
