"""Additions and the like to an element of global memory that other threads change at the same time.

CUDA adds in the common types. What else there is to join with, it has for integers: the bits of floats are in the
order of the numbers where these are positive, and in the opposite order of unsigned numbers where they are negative.
A NaN is given the bits that stay, whatever comes.
"""

from __future__ import annotations

from typing import Any

from tvm.ir import Call
from tvm.tirx import address_of, call_intrin

ATOMICS = "tvm_ext_atomic_"
"""What the names of the functions in C++ begin with; the operation and the type follow."""

STARTS = f"{ATOMICS}start_"
"""Likewise, of the functions that give a number the bits to start with."""

TYPES = {
    "float32": ("float", "int", "unsigned int"),
    "float64": ("double", "long long", "unsigned long long"),
    "int32": ("int", "int", "unsigned int"),
    "int64": ("int64_t", "long long", "unsigned long long"),
    "uint32": ("unsigned int", "unsigned int", "unsigned int"),
    "uint64": ("uint64_t", "unsigned long long", "unsigned long long"),
}
"""Of an element: its type in C++, and integers of as many bits that CUDA changes at once."""

_BITS = {"float32": ("__float_as_int", "__int_as_float"), "float64": ("__double_as_longlong", "__longlong_as_double")}
_LOOP = """
  {unsigned}* at = ({unsigned}*)to;
  {unsigned} seen, old = *at;
  do {{
    seen = old;
    old = atomicCAS(at, seen, ({unsigned}){product});
  }} while (old != seen);
"""
_EXTREME = """
  {signed} bits = value == value ? {as_bits}(value) : {nan};
  if (bits >= 0) {other}(({signed}*)to, bits);
  else {inverse}(({unsigned}*)to, ({unsigned})bits);
"""


def atomic(operation: str, buffer: Any, indices: list[Any], value: Any) -> Call:
    """Join an element of a buffer in global memory with a value.

    Before the first maximum or minimum of floats, what is there must have been made by :func:`start`.
    """
    dtype = str(buffer.dtype)
    element, signed, unsigned = TYPES[dtype]
    is_float = dtype in _BITS
    if operation == "mul":
        as_bits, as_number = _BITS.get(dtype, ("", f"({element})"))
        number = f"{as_number}(({signed})seen)" if is_float else f"({element})seen"
        body = _LOOP.format(unsigned=unsigned, product=f"{as_bits}({number} * value)")
    elif is_float and operation != "add":
        other, inverse = ("atomicMax", "atomicMin") if operation == "max" else ("atomicMin", "atomicMax")
        body = _EXTREME.format(
            signed=signed, unsigned=unsigned, as_bits=_BITS[dtype][0], nan=_nan(operation, signed), other=other,
            inverse=inverse,
        )  # fmt: skip
    elif operation == "add":
        kind = element if is_float else unsigned
        body = f"\n  atomicAdd(({kind}*)to, ({kind})value);\n"
    else:
        body = f"\n  {'atomicMax' if operation == 'max' else 'atomicMin'}(({signed}*)to, ({signed})value);\n"
    name = f"{ATOMICS}{operation}_{dtype}"
    source = f"\n__forceinline__ __device__ void {name}({element}* to, {element} value) {{{body}}}\n"
    return call_intrin("void", "tirx.cuda.func_call", name, address_of(buffer[tuple(indices)]), value, source)


def start(operation: str, value: Any) -> Any:
    """Give the bits to a number that is to be joined with others as :func:`atomic` relies on."""
    dtype = str(value.ty.dtype)
    if dtype not in _BITS or operation not in ("max", "min"):
        return value
    element, signed, _ = TYPES[dtype]
    name = f"{STARTS}{operation}_{dtype}"
    given = f"value == value ? value : {_BITS[dtype][1]}({_nan(operation, signed)})"
    source = f"\n__forceinline__ __device__ {element} {name}({element} value) {{ return {given}; }}\n"
    return call_intrin(dtype, "tirx.cuda.func_call", name, value, source)


def _nan(operation: str, signed: str) -> str:
    """Write the bits of a NaN that no maximum, or no minimum, takes the place of."""
    if operation == "min":
        return f"({signed})-1"
    return "0x7fffffff" if signed == "int" else "0x7fffffffffffffffLL"
