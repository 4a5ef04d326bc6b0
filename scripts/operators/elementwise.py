"""What is computed element by element."""

from __future__ import annotations

from scripts.operators.case import Case, below, between, positive, wide


def _unary(name: str, operator: str, rows: int = 512, columns: int = 3072, opset: int = 17) -> Case:
    return Case(name, f"(float[{rows},{columns}] x) => (y) {{ y = {operator}(x) }}", {"x": wide}, opset)


ELEMENTWISE = (
    _unary("erf", "Erf"),
    _unary("tanh", "Tanh"),
    _unary("exp", "Exp"),
    _unary("sin", "Sin"),
    _unary("atan", "Atan"),
    _unary("sinh", "Sinh"),
    _unary("sigmoid", "Sigmoid"),
    _unary("elu", "Elu"),
    _unary("hard_swish", "HardSwish"),
    _unary("gelu", "Gelu", opset=20),
    _unary("gelu_by_tanh", 'Gelu<approximate="tanh">', opset=20),
    Case("log", "(float[512,3072] x) => (y) { y = Log(x) }", {"x": positive}),
    Case("pow", "(float[512,1024] x) => (y) <float p = {2.5}> { y = Pow(x, p) }", {"x": positive}),
    Case("pow_of_two_tensors", "(float[512,1024] x, float[512,1024] z) => (y) { y = Pow(x, z) }", {"x": positive}),
    Case("pow_gamma", "(float[512,1024] x) => (y) <float p = {2.2}> { y = Pow(x, p) }", {"x": positive}),
    Case("remainder", "(float[512,1024] x, float[512,1024] z) => (y) { y = Mod<fmod=1>(x, z) }", {"z": positive}),
    Case("clip", "(float[512,3072] x) => (y) <float a = {-1}, float b = {1}> { y = Clip(x, a, b) }", {"x": wide}),
    Case(
        "mish",
        "(float[512,1024] x) => (y) { a = Softplus(x) b = Tanh(a) y = Mul(x, b) }",
        {"x": wide},
    ),
    Case("prelu", "(float[1,64,56,56] x) => (y) <float[64,1,1] s> { y = PRelu(x, s) }"),
    Case("divide_rows", "(float[512,1024] x, float[512,1] z) => (y) { y = Div(x, z) }", {"z": positive}),
    Case(
        "outer_sum",
        "(float[64,1,500] x, float[1,60,500] z) => (y) { y = Add(x, z) }",
    ),
    Case("larger", "(float[512,1024] x, float[1,1024] z) => (y) { c = Greater(x, z) y = Where(c, x, z) }"),
    Case(
        "where_broadcast",
        "(float[8,1,256] x, float[1,128,1] z, bool[8,128,256] c) => (y) { y = Where(c, x, z) }",
        {"c": below(2)},
    ),
    Case(
        "batch_norm",
        "(float[1,64,112,112] x) => (y) <float[64] s, float[64] v> { y = BatchNormalization(x, s, s, s, v) }",
        {"v": positive},
    ),
    Case(
        "through_float16",
        "(float[1,64,56,56] x) => (y) { a = Cast<to=10>(x) b = Cast<to=1>(a) y = Relu(b) }",
    ),
    Case(
        "remainder_int64",
        "(int64[512,512] x) => (y) <int64 k = {97}> { y = Mod(x, k) }",
        {"x": below(10**6)},
    ),
    Case(
        "arithmetic_int32",
        "(int32[512,1024] x, int32[512,1024] z) => (y) { a = Mul(x, z) b = Add(a, x) y = Sub(b, z) }",
        {"x": between(-1000, 1000), "z": between(-1000, 1000)},
    ),
    Case(
        "divide_int32",
        "(int32[512,512] x, int32[512,512] z) => (y) { y = Div(x, z) }",
        {"x": below(10**6), "z": between(1, 1000)},
    ),
)
