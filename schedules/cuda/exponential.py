"""Powers of two as the special function unit computes them, in one instruction and a half.

``exp2f`` of CUDA scales arguments whose result is a denormal up and down again, and ``expf`` reduces its argument with
five instructions more. Weights of a softmax that small are zero beside the largest, which is 1 or more.
"""

from __future__ import annotations

from typing import Any

from tvm.ir import Call
from tvm.tirx import call_intrin

FAST_EXP2 = "tvm_ext_exp2"
"""Name of the function in C++."""

_SOURCE = f"""
__forceinline__ __device__ float {FAST_EXP2}(float x) {{
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}}
"""


def fast_exp2(exponent: Any) -> Call:
    """Give two to the power of a float32; results that are denormal are zero."""
    return call_intrin("float32", "tirx.cuda.func_call", FAST_EXP2, exponent, _SOURCE)
