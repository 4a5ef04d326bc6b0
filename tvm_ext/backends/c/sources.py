"""The files of a model in C: interface, plan, kernels, constants, a program that runs it on files, a Makefile."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import tvm

from tvm_ext.backends.c.flags import compiler_options
from tvm_ext.backends.c.helpers import Helpers
from tvm_ext.backends.c.kernel import Kernel, lower_for_c, write_kernel
from tvm_ext.backends.c.plan import Argument, Plan, Region, place_scratch, verify_plan
from tvm_ext.backends.c.program import read_calls
from tvm_ext.backends.c.types import ctype, literal
from tvm_ext.backends.c.weights import LITERAL_BYTES, Weights, lay_out, literal_source
from tvm_ext.tensor_spec import TensorSpec

PART_CHARACTERS = 150_000
"""Text of kernels in one file, about, so that several can be compiled at once."""

_TAKEN = frozenset({"main", "makefile", "clean"})

REFUSED = 3
"""What the program ends with where the model refuses values."""

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Sources:
    """A model in C.

    Attributes
    ----------
    name : str
        What its C names begin with.
    plan : Plan
    kernels : tuple of Kernel
    helpers : str
        C that the kernels need.
    weights : Weights
    options : tuple of str
        Of the compiler, for the instruction sets.
    """

    name: str
    plan: Plan
    kernels: tuple[Kernel, ...]
    helpers: str
    weights: Weights
    options: tuple[str, ...]

    @property
    def stack(self) -> int:
        """Bytes of the arrays on the stack, of the kernel that has most."""
        return max((kernel.stack for kernel in self.kernels), default=0)


def make_sources(name: str, mod: tvm.IRModule, target: tvm.target.Target) -> Sources:
    """Write the kernels of a model.

    Parameters
    ----------
    name : str
        Of the model; what is no C identifier in it is replaced.
    mod : tvm.IRModule
        As the phase ``vectorize`` leaves it.
    target : tvm.target.Target

    Raises
    ------
    UnsupportedOperatorError
        If the model needs a virtual machine.
    CompileError
        If a kernel holds something that C sources have nothing for.
    """
    calls = read_calls(mod)
    used = {step.kernel for step in calls.steps}
    found = {var: func for var, func in mod.functions_items() if isinstance(func, tvm.tirx.PrimFunc)}
    lowered = lower_for_c(
        tvm.IRModule({v: f for v, f in found.items() if v.name_hint in used}, attrs=mod.attrs), target
    )
    helpers = Helpers()
    prefix = identifier(name)
    written = {
        str(var.name_hint): write_kernel(f"{prefix}_k_{identifier(var.name_hint)}", func, helpers)
        for var, func in sorted(lowered.functions_items(), key=lambda item: str(item[0].name_hint))
    }
    needed = {kernel: found.scratch for kernel, found in written.items()}
    plan = place_scratch(calls.steps, calls.arena, needed, calls.copies)
    verify_plan(plan)
    by_use = {step.kernel: written[step.kernel] for step in plan.steps}
    return Sources(
        prefix, plan, tuple(by_use.values()), helpers.text(), lay_out(calls.constants), compiler_options(target)
    )


def identifier(name: str) -> str:
    """Make a C identifier of a name, and none that a file or a goal of ``make`` has."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return plain if re.match(r"[A-Za-z]", plain) and plain.lower() not in _TAKEN else f"m{plain}"


def write_sources(
    sources: Sources, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], in_file: bool | None = None
) -> dict[str, bytes]:
    """Give the files.

    Parameters
    ----------
    sources : Sources
    inputs, outputs : sequence of TensorSpec
    in_file : bool, optional
        Whether constants are a file that the program reads; by default where there are more than
        :data:`~tvm_ext.backends.c.weights.LITERAL_BYTES` of them.
    """
    name = sources.name
    separate = sources.weights.bytes > LITERAL_BYTES if in_file is None else in_file
    files: dict[str, bytes] = {}
    files[f"{name}.h"] = _header(sources, inputs, outputs, separate).encode()
    files[f"{name}_kernels.h"] = _kernels_header(sources).encode()
    parts = _parts(sources.kernels)
    for number, part in enumerate(parts):
        text = f'#include "{name}_kernels.h"\n\n' + "\n".join(kernel.text for kernel in part)
        files[f"{name}_kernels_{number}.c"] = text.encode()
    files[f"{name}.c"] = _model(sources, inputs, outputs, separate).encode()
    if separate:
        files[f"{name}_weights.bin"] = b"".join(sources.weights.parts)
    else:
        for number, content in enumerate(sources.weights.parts):
            files[f"{name}_weights_{number}.c"] = literal_source(f"{name}_weights_{number}", content).encode("ascii")
    fill = {
        "BUFFERS": _buffers(sources, inputs, outputs, separate),
        "LOAD": _LOAD if separate else "",
        "INPUTS": str(len(inputs)),
        "OUTPUTS": str(len(outputs)),
        "NAME": name,
        "REFUSED": str(REFUSED),
        "OPTIONS": " ".join(sources.options),
    }
    for template, file in (("main.c", "main.c"), ("Makefile", "Makefile")):
        text = (TEMPLATES / template).read_text(encoding="utf-8")
        for key, value in fill.items():
            text = text.replace(f"@{key}@", value)
        files[file] = text.encode()
    return files


_LOAD = """  FILE *file = fopen("@NAME@_weights.bin", "rb");
  if (!file || fread(weights, 1, sizeof weights, file) != sizeof weights)
    FAIL("cannot read @NAME@_weights.bin in the current folder\\n");
  fclose(file);
  @NAME@_set_weights(weights);
"""


def _buffers(sources: Sources, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], separate: bool) -> str:
    """Declare where the program keeps inputs, outputs and, where they come from a file, constants."""
    text = f"static _Alignas(64) char weights[{sources.weights.bytes}];\n" if separate else ""
    for what, specs in (("inputs", inputs), ("outputs", outputs)):
        names = [f"{what[:-1]}_{number}" for number in range(len(specs))]
        for name, spec in zip(names, specs, strict=True):
            size = prod(int(extent) for extent in spec.shape) * ctype(spec.dtype).bits // 8
            text += f"static _Alignas(64) char {name}[{max(size, 1)}];\n"
        text += f"static void *const {what}[] = {{{', '.join(names) or '0'}}};\n"
    return text


def _parts(kernels: Sequence[Kernel]) -> list[list[Kernel]]:
    parts: list[list[Kernel]] = []
    size = PART_CHARACTERS
    for kernel in kernels:
        if size + len(kernel.text) > PART_CHARACTERS:
            parts.append([])
            size = 0
        parts[-1].append(kernel)
        size += len(kernel.text)
    return parts


def _header(sources: Sources, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], separate: bool) -> str:
    name = sources.name
    guard = f"{name.upper()}_H"
    lines = [
        f"/* Model {name}: interface. Made by tvm-ext.",
        " *",
        " * Single-threaded. Takes nothing from the heap: tensors between kernels are in one static arena, so that",
        " * one thread at a time may run it. Arrays are dense, in C order, at any multiple of an element.",
        " */",
        f"#ifndef {guard}",
        f"#define {guard}",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        f"#define {name.upper()}_THREADS 1",
        f"#define {name.upper()}_ARENA_BYTES {sources.plan.arena}",
        f"#define {name.upper()}_STACK_BYTES {sources.stack} /* of arrays in the kernel that has most */",
        f"#define {name.upper()}_WEIGHT_BYTES {sources.weights.bytes}",
        f"#define {name.upper()}_INPUTS {len(inputs)}",
        f"#define {name.upper()}_OUTPUTS {len(outputs)}",
        "",
        f"typedef struct {{ const char *name, *type; int rank; const long long *shape; size_t bytes; }} {name}_tensor;",
        f"extern const {name}_tensor {name}_inputs[], {name}_outputs[];",
        "",
    ]
    if separate:
        lines += [
            f"/* The contents of {name}_weights.bin, at a multiple of 64 bytes; to be given before the first run. */",
            f"void {name}_set_weights(const void *weights);",
            "",
        ]
    for what, specs in (("inputs", inputs), ("outputs", outputs)):
        lines += [f"/* {what}[{number}]: {_described(spec)} */" for number, spec in enumerate(specs)]
    lines += [
        "/* Returns 0, or a sentence where values are such as the model refuses; outputs then hold nothing of use. */",
        f"const char *{name}_run(const void *const inputs[], void *const outputs[]);",
    ]
    lines += ["#ifdef __cplusplus", "}", "#endif", "#endif", ""]
    return "\n".join(lines)


def _described(spec: TensorSpec) -> str:
    shape = ", ".join(map(str, spec.shape))
    return f"{_comment(spec.name)}, {spec.dtype} ({shape})"


def _comment(text: str) -> str:
    return text.replace("*/", "* /").replace("/*", "/ *").replace("\n", " ")


_FENCE = """#if defined(__SSE2__)
#define FENCE() _mm_sfence()
#else
#define FENCE() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#endif
"""


def _kernels_header(sources: Sources) -> str:
    declared = "".join(f"{kernel.text[: kernel.text.index(' {')]};\n" for kernel in sources.kernels)
    head = "/* What the kernels are written in, and the kernels. */\n#pragma once\n"
    return f"{head}{sources.helpers}\n{_FENCE}\n{declared}"


def _type_name(spec: TensorSpec) -> str:
    kinds = {"bool": "|b1", "float16": "<f2"}
    if spec.dtype in kinds:
        return kinds[spec.dtype]
    kind = ctype(spec.dtype)
    sign = "f" if kind.is_float else "u" if spec.dtype.startswith("u") else "i"
    return f"{'|' if kind.bits == 8 else '<'}{sign}{kind.bits // 8}"


def _table(name: str, what: str, specs: Sequence[TensorSpec]) -> str:
    text = ""
    rows = []
    for number, spec in enumerate(specs):
        shape = [int(extent) for extent in spec.shape]
        label = f"{name}_{what}_{number}_shape"
        text += f"static const long long {label}[] = {{{', '.join(map(str, shape or [1]))}}};\n"
        size = prod(shape) * ctype(spec.dtype).bits // 8
        rows.append(f'  {{{literal(spec.name)}, "{_type_name(spec)}", {len(shape)}, {label}, {size}}},\n')
    body = "".join(rows) or "  {0}\n"
    return f"{text}const {name}_tensor {name}_{what}[] = {{\n{body}}};\n"


def _model(sources: Sources, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], separate: bool) -> str:
    name = sources.name
    lines = [
        f"/* Model {name}: the arena, and what is called in which order. */\n",
        f'#include "{name}.h"\n#include "{name}_kernels.h"\n',
        _table(name, "inputs", inputs),
        _table(name, "outputs", outputs),
    ]
    if sources.plan.arena:
        lines.append(f"\nstatic _Alignas(64) char arena[{name.upper()}_ARENA_BYTES];\n")
    starts = {}
    if separate:
        lines.append("static const char *weights;\n")
        lines.append(f"void {name}_set_weights(const void *given) {{ weights = given; }}\n")
        position = 0
        for number, part in enumerate(sources.weights.parts):
            starts[number] = f"weights + {position}"
            position += len(part)
    else:
        for number in range(len(sources.weights.parts)):
            lines.append(f"extern const unsigned char {name}_weights_{number}[];\n")
            starts[number] = f"{name}_weights_{number}"
    kernels: Mapping[str, Kernel] = {kernel.name: kernel for kernel in sources.kernels}
    flushes = any(kernel.flushes for kernel in sources.kernels)
    if flushes:
        lines.append((TEMPLATES / "flush.c").read_text(encoding="utf-8"))
    lines.append(f"\nconst char *{name}_run(const void *const inputs[], void *const outputs[]) {{\n")
    lines.append("  (void)inputs, (void)outputs;\n")
    lines += [_limited(number, spec) for number, spec in enumerate(inputs)]
    refuses = any(kernel.refuses for kernel in sources.kernels)
    if refuses:
        lines.append("  const char *refused;\n")
    if flushes:
        lines.append("  const unsigned long mode = get_mode();\n")
    flushing = False
    for step in sources.plan.steps:
        kernel = kernels[f"{name}_k_{identifier(step.kernel)}"]
        if kernel.flushes != flushing:
            flushing = kernel.flushes
            lines.append(f"  set_mode({'flushing(mode)' if flushing else 'mode'});\n")
        arguments = [_address(argument, sources.weights, starts) for argument in step.arguments]
        if step.scratch is not None:
            arguments.append(f"arena + {step.scratch}")
        call = f"{kernel.name}({', '.join(arguments)})"
        lines.append(f"  if ((refused = {call})) goto end;\n" if kernel.refuses else f"  {call};\n")
    for argument, output in sources.plan.copies:
        source = _address(argument, sources.weights, starts)
        lines.append(f"  memcpy(outputs[{output}], {source}, {argument.bytes});\n")
    if refuses:
        lines.append("  refused = 0;\nend:\n")
    if flushes:
        lines.append("  set_mode(mode);\n")
    lines.append(f"  return {'refused' if refuses else '0'};\n}}\n")
    return "".join(lines)


def _limited(number: int, spec: TensorSpec) -> str:
    """Write the loop that compares an input with the integers that it may hold, where its type holds others."""
    if spec.limits is None:
        return ""
    kind, own = ctype(spec.dtype), np.iinfo(spec.dtype)
    low, high = spec.limits
    wrong = [f"value < {low}"] * (low > own.min) + [f"value > {high}"] * (high < own.max)
    count = prod(int(extent) for extent in spec.shape)
    if not wrong or not count:
        return ""
    message = literal(f"input {spec.name}: the model looks something up with it, and it may hold {low} to {high} only")
    return (
        f"  for (size_t at = 0; at < {count}; ++at) {{\n"
        f"    {kind.name} value;\n"
        f"    memcpy(&value, (const char *)inputs[{number}] + at * sizeof value, sizeof value);\n"
        f"    if ({' || '.join(wrong)}) return {message};\n"
        "  }\n"
    )


def _address(argument: Argument, weights: Weights, starts: Mapping[int, str]) -> str:
    place = argument.place
    if place.region == Region.ARENA:
        return f"(void *)(arena + {place.offset})"
    if place.region == Region.CONSTANT:
        part, offset = weights.places[place.number]
        return f"(void *)({starts[part]} + {offset + place.offset})"
    side = "inputs" if place.region == Region.INPUT else "outputs"
    return f"(void *)((char *){side}[{place.number}] + {place.offset})"
