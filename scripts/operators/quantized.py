"""Integers of 8 bits."""

from __future__ import annotations

from scripts.operators.case import Case, between

_SCALES = "float s = {0.02}, uint8 z = {120}, float t = {0.01}, int8 n = {0}, float u = {0.6}"

QUANTIZED = (
    Case(
        "quantize",
        "(float[1,64,112,112] x) => (y) <float s = {0.003}, uint8 z = {120}> { y = QuantizeLinear(x, s, z) }",
    ),
    Case(
        "dequantize",
        "(uint8[1,64,112,112] x) => (y) <float s = {0.003}, uint8 z = {120}> { y = DequantizeLinear(x, s, z) }",
    ),
    Case(
        "qlinear_conv",
        f"""(uint8[1,64,28,28] x) => (y) <int8[64,64,3,3] w, int32[64] b, {_SCALES}> {{
            y = QLinearConv<pads=[1,1,1,1]>(x, s, z, w, t, n, u, z, b)
        }}""",
        {"b": between(-5000, 5000), "w": between(-63, 64)},
    ),
    Case(
        "qlinear_conv_1x1",
        f"""(uint8[1,128,28,28] x) => (y) <int8[128,128,1,1] w, {_SCALES}> {{
            y = QLinearConv(x, s, z, w, t, n, u, z)
        }}""",
        {"w": between(-63, 64)},
    ),
    Case(
        "qlinear_depthwise",
        f"""(uint8[1,96,28,28] x) => (y) <int8[96,1,3,3] w, {_SCALES}> {{
            y = QLinearConv<pads=[1,1,1,1], group=96>(x, s, z, w, t, n, u, z)
        }}""",
        {"w": between(-63, 64)},
    ),
    Case(
        "qlinear_product",
        f"""(uint8[128,384] x) => (y) <int8[384,384] w, {_SCALES}> {{
            y = QLinearMatMul(x, s, z, w, t, n, u, z)
        }}""",
        {"w": between(-63, 64)},
    ),
    Case(
        "product_integer",
        """(uint8[128,384] x) => (y) <int8[384,384] w, uint8 z = {120}> { y = MatMulInteger(x, w, z) }""",
        {"w": between(-63, 64)},
    ),
    Case(
        "product_quantized_at_run_time",
        """(float[128,384] x) => (y) <int8[384,1536] w, float t = {0.01}> {
            q, s, z = DynamicQuantizeLinear(x) a = MatMulInteger(q, w, z) f = Cast<to=1>(a) c = Mul(s, t) y = Mul(f, c)
        }""",
        {"w": between(-63, 64)},
    ),
    Case(
        "quantized_layer_in_nodes",
        f"""(float[1,64,28,28] x) => (y) <int8[64,64,3,3] w, float[64] b, {_SCALES}> {{
            q = QuantizeLinear(x, t, z) d = DequantizeLinear(q, t, z) v = DequantizeLinear(w, t, n)
            c = Conv<pads=[1,1,1,1]>(d, v, b) r = Relu(c) y = QuantizeLinear(r, s, z)
        }}""",
        {"w": between(-63, 64)},
    ),
)
