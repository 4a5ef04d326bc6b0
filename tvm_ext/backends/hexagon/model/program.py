"""From a lowered model to a program: its kernels in order, every tensor's place, constants; no virtual machine.

TVM's virtual machine does not run where these kernels do. A model without branches and open extents needs none: it is a
list of calls on one block of memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from tvm_ext.backends.hexagon.code import Program, assemble, compiled_runtime, refuse_packed_calls
from tvm_ext.backends.hexagon.emulator import Counts, Script
from tvm_ext.backends.hexagon.model.kernels import PREFIX
from tvm_ext.backends.hexagon.packer.assembly import callers_of
from tvm_ext.backends.hexagon.packer.calls import trace_calls
from tvm_ext.backends.hexagon.packer.pack import Packed, packed_kernels
from tvm_ext.backends.hexagon.target import VECTOR_BYTES, processor
from tvm_ext.backends.hexagon.toolchain import LLD, MissingFunctionError
from tvm_ext.backends.hexagon.toolchain import program as tool
from tvm_ext.errors import CompileError, MemoryLimitError, UnsupportedOperatorError
from tvm_ext.graph.origins import nodes_of_kernels, with_nodes, words_of
from tvm_ext.graph.units import bytes_text
from tvm_ext.memory.arena import plan_arena
from tvm_ext.relax_utils import constant, static_shape

MOST_BYTES = 3 << 30
"""Memory of a model at most; a program has 32 bits for addresses, and needs some itself."""

MOST_ARGUMENTS = 128
"""Tensors of one kernel, as MAX_ARGUMENTS of runtime/driver.c."""

SHARE = 0.002
"""Of a model's packets, below which a block keeps LLVM's."""

CONSTANTS, ARENA = 0, 1

OPEN, BRANCHES = "open extents", "branches"


@dataclass(frozen=True)
class Step:
    """A call of a kernel.

    Attributes
    ----------
    kernel : str
    places : tuple of (region, offset)
        Of its arguments: region 0 is that of constants, region 1 that of all other tensors.
    bytes : int
        Of all its arguments.
    nodes : tuple of str
        Words for the nodes of the model that it computes, as far as they are known.
    """

    kernel: str
    places: tuple[tuple[int, int], ...]
    bytes: int
    nodes: tuple[str, ...] = ()

    @property
    def is_vector(self) -> bool:
        """Whether it is a kernel for HVX; others run on the scalar core."""
        return self.kernel.startswith(PREFIX)


@dataclass(frozen=True)
class Plan:
    """What a program does in one run.

    Attributes
    ----------
    steps : tuple of Step
    arena : int
        Bytes of the tensors that are not constant.
    inputs, outputs : tuple of (region, offset)
    """

    steps: tuple[Step, ...]
    arena: int
    inputs: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int, int], ...]

    def to_json(self) -> dict[str, Any]:
        """Give it as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """Read what :meth:`to_json` gave."""
        steps = tuple(
            Step(row["kernel"], _pairs(row["places"]), int(row["bytes"]), tuple(map(str, row.get("nodes", ()))))
            for row in data["steps"]
        )
        return cls(steps, int(data["arena"]), _pairs(data["inputs"]), _pairs(data["outputs"]))


def _pairs(rows: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((int(region), int(offset)) for region, offset in rows)


@dataclass(frozen=True)
class ModelProgram:
    """A program, its plan, and its constants as bytes.

    Attributes
    ----------
    program : Program
    plan : Plan
    constants : bytes
    text : str
        Assembly of its kernels.
    packed : Packed, optional
        How its kernels got their packets; not kept on disk.
    """

    program: Program
    plan: Plan
    constants: bytes
    text: str = field(default="", repr=False)
    packed: Packed | None = field(default=None, compare=False)

    def run(self, inputs: Sequence[np.ndarray], sizes: Sequence[int]) -> tuple[list[bytes], list[Counts]]:
        """Run the model in the emulator.

        Parameters
        ----------
        inputs : sequence of np.ndarray
        sizes : sequence of int
            Bytes of the outputs.

        Returns
        -------
        tuple
            Contents of the outputs, and counts of each step.

        Raises
        ------
        CompileError
            If the program fails.
        """
        counts, contents = self._script(self.program, inputs, sizes).run()
        return contents, counts

    def trace(self, inputs: Sequence[np.ndarray], sizes: Sequence[int]) -> tuple[list[bytes], list[Counts], list[int]]:
        """Run the model as :meth:`run` does, and give the cycles of each step by the model, too."""
        counts, contents, cycles = trace_calls(
            self.text, self.program, lambda program: self._script(program, inputs, sizes)
        )
        return contents, counts, cycles

    def _script(self, program: Program, inputs: Sequence[np.ndarray], sizes: Sequence[int]) -> Script:
        script = Script(program)
        script.array(np.frombuffer(self.constants, np.uint8))
        script.allocate(self.plan.arena)
        for place, array in zip(self.plan.inputs, inputs, strict=True):
            script.write(place, array)
        for step in self.plan.steps:
            script.call(step.kernel, step.places)
        for place, size in zip(self.plan.outputs, sizes, strict=True):
            script.read(place, size)
        return script


def model_program(mod: tvm.IRModule, target: tvm.target.Target, limit: int | None = None) -> ModelProgram:
    """Make the program of a model.

    Parameters
    ----------
    mod : tvm.IRModule
        As the phase ``lower`` leaves it.
    target : tvm.target.Target
    limit : int, optional
        Bytes that inputs, intermediate tensors and results may take.

    Raises
    ------
    MemoryLimitError
        If they take more.
    UnsupportedOperatorError
        If it needs a virtual machine: branches, open extents, operators without a kernel.
    CompileError
        If it needs more memory than there are addresses, or its kernels cannot be compiled.
    MissingPackageError
        If a tool is missing.
    """
    name = processor(target)
    tool(LLD)  # what is missing or too old is noticed before minutes of packing
    compiled_runtime(name)
    calls = _Calls(mod)
    plan, constants = calls.planned()
    if plan.arena + len(constants) > MOST_BYTES:
        gibibytes = (plan.arena + len(constants)) / 2**30
        raise CompileError(
            f"the model needs {gibibytes:.1f} GiB and a Hexagon program has {MOST_BYTES / 2**30:.0f} GiB of addresses; "
            "make the input smaller"
        )
    if limit is not None and plan.arena > limit:
        raise MemoryLimitError(
            f"memory limit {bytes_text(limit)}: inputs, intermediate tensors and results of the Hexagon program take "
            f"{bytes_text(plan.arena)}; raise the limit, or make the input smaller"
        )
    used = {step.kernel for step in plan.steps}
    kernels = {
        global_var: func
        for global_var, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc) and global_var.name_hint in used
    }
    nodes = nodes_of_kernels(mod)
    refuse_packed_calls(tvm.IRModule(kernels), nodes)
    packed = packed_kernels(tvm.IRModule(kernels, attrs=mod.attrs), target, SHARE)
    names = sorted(str(global_var.name_hint) for global_var in kernels)
    try:
        program = assemble([packed.text], names, name)
    except MissingFunctionError as error:
        callers = callers_of(packed.text, error.functions)
        raise MissingFunctionError(
            error.functions, [with_nodes(item, nodes.get(item, ())) for item in callers]
        ) from None
    return ModelProgram(program, plan, constants, packed.text, packed)


@dataclass
class _Calls:
    """Reads the calls of ``main``."""

    mod: tvm.IRModule
    values: dict[Any, Any] = field(default_factory=dict)  # a variable's storage, or several of a tuple's
    sizes: dict[str, int] = field(default_factory=dict)
    alive: dict[str, tuple[int, int]] = field(default_factory=dict)
    calls: list[tuple[str, list[str], tuple[str, ...]]] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    unknown: dict[str, list[str]] = field(default_factory=dict)

    def planned(self) -> tuple[Plan, bytes]:
        """Give every tensor a place."""
        main = self.mod["main"]
        for param in main.params:
            self.values[param] = self._storage(param, str(param.name))
        for binding in self._bindings(main):
            self._bind(binding.var, binding.value)
        if self.unknown:
            raise self._refusal()
        outputs = list(_flat(self._value(main.body.body)))
        inputs = [self.values[param] for param in main.params]
        for name in outputs:
            if name in self.alive:
                self.alive[name] = self.alive[name][0], len(self.calls)
        for name in inputs:  # they are all written before the first call
            self.alive[name] = 0, self.alive[name][1]
        return self._plan(inputs, outputs)

    def _refusal(self) -> UnsupportedOperatorError:
        """Say what of the model is no list of kernels."""
        faults = {name: ", ".join(dict.fromkeys(places)) for name, places in self.unknown.items()}
        if OPEN in self.unknown:  # without extents, nothing behind them has a place either
            text = (
                f"a Hexagon program has the place of every tensor decided, and extents are open: {faults[OPEN]}; fix "
                "them with --input-shape, or compile for another target"
            )
            return UnsupportedOperatorError(text, faults={OPEN: faults[OPEN]})
        operators = ", ".join(
            with_nodes(name, list(dict.fromkeys(self.unknown[name]))) for name in sorted(self.unknown)
        )
        return UnsupportedOperatorError(
            f"a Hexagon program is a list of kernels, and the model needs more than that: {operators}; compile it for "
            "another target",
            faults=faults,
        )

    def _plan(self, inputs: Sequence[str], outputs: Sequence[str]) -> tuple[Plan, bytes]:
        places: dict[str, tuple[int, int]] = {}
        content = bytearray()
        for name, array in self.constants.items():
            places[name] = CONSTANTS, len(content)
            content += array.tobytes()
            content += bytes(-len(content) % VECTOR_BYTES)
        # Kernels read vectors to the end of the last one.
        padded = {name: -(-max(self.sizes[name], 1) // VECTOR_BYTES) * VECTOR_BYTES for name in self.alive}
        arena = plan_arena(self.alive, padded, VECTOR_BYTES)
        places |= {name: (ARENA, offset) for name, offset in arena.offsets.items()}
        steps = tuple(
            Step(kernel, tuple(places[name] for name in names), sum(self.sizes[name] for name in names), nodes)
            for kernel, names, nodes in self.calls
        )
        found = tuple(places[name] for name in inputs), tuple(places[name] for name in outputs)
        return Plan(steps, arena.size, *found), bytes(content)

    def _bindings(self, function: relax.Function) -> Iterator[Any]:
        for block in function.body.blocks:
            yield from block.bindings

    def _bind(self, var: relax.Var, value: Any) -> None:
        if isinstance(value, relax.Call):
            if isinstance(value.op, tvm.ir.GlobalVar) and isinstance(self.mod[value.op], tirx.PrimFunc):
                names = [self._value(arg) for arg in value.args]
                if all(isinstance(name, str) for name in names):
                    self._call(str(value.op.name_hint), names, words_of(var))
                    return
            name = self._operator(value.op)
            if name == "relax.builtin.alloc_tensor" and static_shape(var) is not None:
                self.values[var] = self._storage(var, str(var.name))
                return
            if name == "relax.reshape" and static_shape(var) is not None:
                self.values[var] = self._value(value.args[0])
                return
            self._refuse(name, var)
            return
        if isinstance(value, relax.If):
            self._refuse(BRANCHES, var)
            return
        self.values[var] = self._value(value)

    def _refuse(self, fault: str, var: relax.Var) -> None:
        """Note what is no list of kernels, by the nodes that it comes from, or by its variable where none are known."""
        self.unknown.setdefault(fault, []).extend(words_of(var) or (str(var.name),))

    def _operator(self, op: Any) -> str:
        """Name what is called, as an error has it."""
        if isinstance(op, tvm.ir.GlobalVar):
            return f"kernel {op.name_hint}" if isinstance(self.mod[op], tirx.PrimFunc) else BRANCHES
        return str(getattr(op, "global_symbol", getattr(op, "name", op)))

    def _value(self, expr: Any) -> Any:
        if isinstance(expr, relax.Tuple):
            return [self._value(item) for item in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            return self._value(expr.tuple_value)[int(expr.index)]
        array = constant(expr)
        if array is not None:
            name = f"constant{len(self.constants)}"
            self.constants[name], self.sizes[name] = array, array.nbytes
            return name
        return self.values.get(expr)

    def _storage(self, var: relax.Var, label: str) -> str:
        name = f"{len(self.sizes)}.{label}"
        shape = static_shape(var)
        if shape is None:
            self.unknown.setdefault(OPEN, []).append(label)
            shape = ()
        self.sizes[name] = int(np.prod(shape)) * tvm.DataType(str(var.ty.dtype)).itemsize
        self.alive[name] = len(self.calls), len(self.calls)
        return name

    def _call(self, kernel: str, names: list[str], nodes: tuple[str, ...]) -> None:
        if len(names) > MOST_ARGUMENTS:
            raise CompileError(
                f"kernel {with_nodes(kernel, nodes)} reads and writes {len(names)} tensors, and a Hexagon program "
                f"passes at most {MOST_ARGUMENTS}; split the operator with so many inputs into several"
            )
        for name in names:
            if name in self.alive:
                self.alive[name] = self.alive[name][0], len(self.calls)
        self.calls.append((kernel, names, nodes))


def _flat(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _flat(item)
    else:
        yield value
