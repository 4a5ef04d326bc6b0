"""Transcendental functions as arithmetic on whole vectors.

LLVM has no vector form of ``expf`` and its kin on a CPU without a vector math library: it calls the scalar function for
every lane. Here each becomes a range reduction and a polynomial (Muller, Elementary Functions, chapters 4 and 11), the
same code for a scalar and for a vector. Every result is within 2e-7 of the exact value, relatively (the tests measure
it), except where it is subnormal (then within 7e-39, and maybe zero); infinities and NaN come out as from the C
library.

Only float32 is rewritten (float16 and bfloat16 go through it); other types keep the library's functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.simd.arcs import acos, asin, atan
from tvm_ext.schedules.simd.exponentials import (
    AVX2_LANES,
    AVX512_LANES,
    clamp,
    exp,
    exp_of_moderate,
    sigmoid,
    tanh,
)
from tvm_ext.schedules.simd.hyperbolics import acosh, asinh, atanh, cosh, sinh
from tvm_ext.schedules.simd.logarithms import log, log1p
from tvm_ext.schedules.simd.piecewise import erf_by_pieces
from tvm_ext.schedules.simd.polynomial import erf_far, erf_near, horner
from tvm_ext.schedules.simd.powers import EXPONENTS_OF_ROOTS, power, power_by_roots, power_of_constant
from tvm_ext.schedules.simd.remainders import remainder
from tvm_ext.schedules.simd.vector import (
    Bindings,
    constant_like,
    element_type,
    lanes_of,
    llvm_function,
    operation,
    wide_type,
)
from tvm_ext.schedules.simd.waves import wave

_REWRITTEN = frozenset(["float32", "float16", "bfloat16"])


def expands(call: Any) -> bool:
    """Whether :func:`expand` rewrites a call, or a remainder of floats."""
    name, arguments = _function(call)
    if name != "pow":
        return name in _FUNCTIONS and element_type(call) in _REWRITTEN
    exponent = _constant(arguments[1])
    if exponent in EXPONENTS_OF_ROOTS:
        return True
    return (exponent is None or (exponent != 0 and math.isfinite(exponent))) and element_type(call) in _REWRITTEN


def needs_vectors(call: Any) -> bool:
    """Whether what a call is rewritten as looks at all lanes at once, which no single lane of a loop can."""
    name, arguments = _function(call)
    return name in ("sin", "cos", "fmod") or (name == "pow" and _constant(arguments[1]) is None)


def expand(call: Any, isa: str = "") -> Any:
    """Rewrite the call of a transcendental function as arithmetic; any other call is returned as it is.

    Parameters
    ----------
    call : tvm.ir.Call or tvm.tirx.Mod
    isa : str
        The instruction set's row (:attr:`tvm_ext.schedules.cpu.machine.Machine.isa`) whose instructions may be used.
    """
    if not expands(call):
        return call
    name, arguments = _function(call)
    function: Callable[..., Any]
    if name == "pow":
        exponent = _constant(arguments[1])
        if exponent is not None and exponent in EXPONENTS_OF_ROOTS:
            return power_by_roots(arguments[0], exponent)
        if exponent is not None:
            arguments, function = arguments[:1], partial(power_of_constant, exponent=exponent)
        else:
            function = power
    else:
        function = partial(_FUNCTIONS[name], isa=isa) if name in ("exp", "erf", "sigmoid") else _FUNCTIONS[name]
    if element_type(call) == "float32":
        return function(*arguments)
    lanes = lanes_of(call)
    single = function(*(prim.Cast(wide_type("float32", lanes), argument) for argument in arguments))
    return prim.Cast(wide_type(element_type(call), lanes), single)


def c_function(call: Any) -> str:
    """Name the function of the C library that a call names as such and that :func:`expand` rewrites; or nothing."""
    if isinstance(call, prim.Mod):
        return ""
    is_known = operation(call) == "call_pure_extern" and call.args[0].value in _C_FUNCTIONS and expands(call)
    return str(call.args[0].value) if is_known else ""


def calls_by_name(call: Any) -> bool:
    """Whether the first argument of a call names what computes the others lane by lane: C's functions, and rounding."""
    return bool(c_function(call)) or llvm_function(call) == "llvm.lrint"


def _function(call: Any) -> tuple[str, list[Any]]:
    """Name the function that is computed, and give its arguments."""
    if isinstance(call, prim.Mod):
        return "fmod", [call.a, call.b]
    name = operation(call)
    if name == "call_pure_extern":
        return _C_FUNCTIONS.get(str(call.args[0].value), ""), list(call.args[1:])
    return name, list(call.args)


def _constant(exponent: Any) -> float | None:
    constant = exponent.value if isinstance(exponent, prim.Broadcast) else exponent
    return float(constant.value) if isinstance(constant, prim.FloatImm) else None


def _erf(value: Any, isa: str = "") -> Any:
    """Compute ``erf``: a polynomial for ``|x| < 1``; beyond, ``1 - exp(-p)`` where ``p`` fits ``-log(1 - erf(x))``."""
    if (isa, lanes_of(value)) in (("avx512", AVX512_LANES), ("avx2", AVX2_LANES)):
        return erf_by_pieces(value)
    names = Bindings()
    value = names.bind("value", value)
    size = names.bind("size", tirx.abs(value))
    near = names.bind("near", value * horner(erf_near(), names.bind("square", value * value)) + value)
    limited = clamp(names, size, 1.0, 4.0)
    zero, one = constant_like(0.0, value), constant_like(1.0, value)
    far = names.bind("far", one - exp_of_moderate(zero - horner(erf_far(), limited)))
    signed = prim.Select(value < zero, zero - far, far)
    return names.around(prim.Select(size < one, near, signed))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp": exp,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "log": log,
    "log1p": log1p,
    "erf": _erf,
    "sin": partial(wave, "sin"),
    "cos": partial(wave, "cos"),
    "acos": acos,
    "acosh": acosh,
    "asin": asin,
    "asinh": asinh,
    "atan": atan,
    "atanh": atanh,
    "cosh": cosh,
    "sinh": sinh,
    "fmod": remainder,
}
# Functions whose calls name those of the C library, as TVM's own have other values or make it write to stderr.
_C_FUNCTIONS = {f"{name}f": name for name in "acos acosh asin asinh atan atanh cosh fmod pow sinh".split()}
