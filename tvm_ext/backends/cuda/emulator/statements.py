"""Translates the statements of a kernel into Python functions that run them for all threads of some blocks, in step.

A step is one statement. Between barriers any order of the threads gives the same result unless they race, so this
order is as good as another; and races are what the checker finds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.backends.cuda.emulator.expressions import (
    CHANGING,
    THREAD,
    Expressions,
    Pointer,
    View,
    dtype_of,
    operation,
    own,
)
from tvm_ext.backends.cuda.emulator.lanes import Lanes
from tvm_ext.backends.cuda.emulator.memory import Fragments, Local, Shared, numpy_type

Step = Callable[[Lanes], None]
Intrinsic = Callable[["Statements", Any], Step]


class Statements(Expressions):
    """Translates the body of one kernel.

    Attributes
    ----------
    extents : dict of str to expression
        Of blocks and threads, by their names in CUDA.
    stored : set of int
        Slots of the memories that are written.
    """

    def __init__(self, kernel: str, intrinsics: dict[str, Intrinsic]) -> None:
        super().__init__(kernel)
        self._intrinsics = intrinsics
        self.extents: dict[str, Any] = {}
        self.stored: set[int] = set()

    def step(self, s: Any) -> Step:
        """Translate a statement."""
        kind = type(s)
        if kind is tirx.SeqStmt:
            return _sequence([self.step(inner) for inner in s.seq])
        if kind is tirx.AttrStmt:
            return self._attribute(s)
        if kind is tirx.For:
            return self._loop(s)
        if kind is tirx.IfThenElse:
            return self._branch(s)
        if kind is tirx.BufferStore:
            # TVM ends a reduction by threads with `result[0] = result[0]` in all of them, which changes nothing.
            return _nothing if _stores_itself(s) else self._store(s)
        if kind is tirx.Bind:
            return self._bind(s)
        if kind is tirx.AllocBuffer:
            return self._allocate(s.buffer)
        if kind is tirx.DeclBuffer:
            return self._declare(s)
        if kind is tirx.Evaluate:
            return self._evaluate(s.value)
        if kind is tirx.While:
            return self._while(s)
        if kind is tirx.AssertStmt:
            return _nothing
        raise self.refuse(f"a statement {kind.__name__}")

    def _attribute(self, s: Any) -> Step:
        if s.attr_key == "thread_extent":
            tag = str(s.node.thread_tag)
            if tag.split(".")[0] not in ("blockIdx", "threadIdx"):
                raise self.refuse(f"threads {tag}")
            if tag in self.extents and not same_structure(self.extents[tag], s.value):
                raise self.refuse(f"two extents of {tag}")
            self.extents[tag] = s.value
            slot = self.variable(s.node.var, THREAD)
            body = self.step(s.body)

            def run(lanes: Lanes) -> None:
                lanes.slots[slot] = lanes.index(tag)
                body(lanes)

            return run
        if s.attr_key == "async_commit_queue_scope":
            return _sequence([self.step(s.body), commit])
        if s.attr_key == "async_wait_queue_scope":
            # CUDA's printer waits before the body, for all but the number of groups that the inner attribute says.
            left = int(s.body.value)
            return _sequence([lambda lanes: wait(lanes, left), self.step(s.body.body)])
        return self.step(s.body)

    def _loop(self, s: Any) -> Step:
        start, extent = self.value(s.min), self.value(s.extent)
        stride = 1 if getattr(s, "step", None) is None else int(s.step)
        slot = self.variable(s.loop_var)
        body = self.step(s.body)

        def run(lanes: Lanes) -> None:
            first, count = start(lanes), extent(lanes)
            if not isinstance(first, np.ndarray) and not isinstance(count, np.ndarray):
                for number in range(int(first), int(first) + int(count), stride):
                    lanes.slots[slot] = number
                    body(lanes)
                return
            before = lanes.mask
            for passed in range(0, int(np.max(count)), stride):
                lanes.mask = before
                lanes.mask = lanes.masked(np.asarray(passed < count) & np.ones(lanes.lanes, np.bool_))
                if lanes.mask.any():
                    lanes.slots[slot] = first + passed
                    body(lanes)
            lanes.mask = before

        return run

    def _while(self, s: Any) -> Step:
        condition, body = self.value(s.condition), self.step(s.body)

        def run(lanes: Lanes) -> None:
            before = lanes.mask
            while True:
                going = condition(lanes)
                if isinstance(going, np.ndarray):
                    lanes.mask = lanes.masked(going)
                    going = lanes.mask.any()
                if not going:
                    break
                body(lanes)
            lanes.mask = before

        return run

    def _branch(self, s: Any) -> Step:
        condition, then = self.value(s.condition), self.step(s.then_case)
        other = None if s.else_case is None else self.step(s.else_case)

        def run(lanes: Lanes) -> None:
            which = condition(lanes)
            if not isinstance(which, np.ndarray):
                if which:
                    then(lanes)
                elif other is not None:
                    other(lanes)
                return
            before = lanes.mask
            for part, active in ((then, which), (other, ~which)):
                if part is None:
                    continue
                if before is None and active.all():
                    part(lanes)
                    continue
                lanes.mask = active if before is None else before & active
                if lanes.mask.any():
                    part(lanes)
                lanes.mask = before

        return run

    def _store(self, s: Any) -> Step:
        self.printable(dtype_of(s.value))
        view = self.view(s.buffer)
        index, value = self.element(s.indices, view), self.value(s.value)
        access = self.access(s.buffer, s.indices[0], view)
        slot, dtype = view.slot, view.dtype
        self.stored.add(slot)

        def run(lanes: Lanes) -> None:
            storage = lanes.storages[slot]
            assert storage is not None
            storage.store(lanes, dtype, index(lanes), value(lanes), access)

        return run

    def _bind(self, s: Any) -> Step:
        if isinstance(s.var.ty, tvm.ir.PointerType):
            pointer = self.pointer(s.value)
            self.memories[s.var] = pointer.view.slot
            return _nothing
        code = self.code(s.value)
        value = self.kept(code)
        slot = self.variable(s.var, CHANGING if code.kind == CHANGING else THREAD)

        def run(lanes: Lanes) -> None:
            lanes.slots[slot] = own(value(lanes))

        return run

    def _allocate(self, buffer: Any) -> Step:
        slot = self.memory(buffer)
        view = self.view(buffer, slot)
        scope = str(buffer.scope())
        sizes = [self.value(extent) for extent in buffer.shape]
        width, dtype = view.width, view.dtype

        def run(lanes: Lanes) -> None:
            if lanes.storages[slot] is not None:
                return
            elements = width * int(np.prod([int(size(lanes)) for size in sizes], dtype=np.int64))
            if scope.startswith("shared"):
                lanes.storages[slot] = Shared(elements * dtype.itemsize, scope, lanes.count)
            elif scope.startswith("wmma"):
                lanes.storages[slot] = Fragments(elements, dtype, lanes.count * lanes.launch.warps, scope)
            else:
                lanes.storages[slot] = Local(elements, dtype, lanes.lanes)

        if not (scope.startswith(("shared", "wmma")) or scope in ("local", "")):
            raise self.refuse(f"memory of scope {scope!r}")
        return run

    def _declare(self, s: Any) -> Step:
        if isinstance(s.data, tvm.ir.Var):
            slot = self.memories[s.data]
        else:
            slot = self.pointer(s.data).view.slot
        if int(getattr(s.buffer, "elem_offset", 0) or 0):
            raise self.refuse(f"buffer {s.buffer.name}, which begins inside another one")
        self.view(s.buffer, slot)
        return _nothing

    def _evaluate(self, e: Any) -> Step:
        if not isinstance(e, tvm.ir.Call):
            return _nothing
        name = operation(e)
        if name == "tvm_storage_sync":
            return self._barrier(str(e.args[0].value))
        if name == "cuda.func_call" and str(e.args[0].value) in self._intrinsics:
            name = str(e.args[0].value)
        if name in self._intrinsics:
            return self._intrinsics[name](self, e)
        value = self.value(e)

        def run(lanes: Lanes) -> None:
            value(lanes)

        return run

    def _barrier(self, scope: str) -> Step:
        if scope == "warp":
            # CUDA code of TVM 0.27 has nothing here: since Volta that orders nothing, and so it does not here.
            return _nothing
        if not scope.startswith("shared"):
            raise self.refuse(f"a barrier of {scope}")
        return block_barrier

    def target(self, e: Any) -> Pointer:
        """Translate an address that is written to."""
        pointer = self.pointer(e)
        self.stored.add(pointer.view.slot)
        self.narrowest = min(self.narrowest, pointer.view.dtype.itemsize)
        return pointer

    def seen(self, buffer: Any, dtype: str) -> View:
        """See a buffer as elements of another type."""
        return View(self.view(buffer).slot, numpy_type(dtype), 1, buffer)


def block_barrier(lanes: Lanes) -> None:
    """Let the threads of each block wait for each other."""
    if lanes.checker is not None:
        lanes.checker.block_barrier(lanes)


def warp_barrier(lanes: Lanes) -> None:
    """Let the threads of each warp wait for each other."""
    if lanes.checker is not None:
        lanes.checker.warp_barrier(lanes)


def commit(lanes: Lanes) -> None:
    """Close the group of asynchronous copies that began last."""
    lanes.copies.append([])


def wait(lanes: Lanes, left: int) -> None:
    """Let asynchronous copies arrive, all but those of the last ``left`` closed groups and of the open one."""
    groups = max(len(lanes.copies) - 1 - left, 0)
    for group in lanes.copies[:groups]:
        for copy in group:
            copy.arrive(lanes)
        lanes.unseen = True
    del lanes.copies[:groups]


def same_structure(first: Any, second: Any) -> bool:
    """Compare expressions by their structure."""
    return bool(tvm_ffi.structural_equal(first, second, map_free_vars=True))


def _nothing(lanes: Lanes) -> None:
    pass


def _stores_itself(s: Any) -> bool:
    value = s.value
    return (
        isinstance(value, tvm.ir.TensorLoad)
        and value.source.same_as(s.buffer)
        and all(map(tvm_ffi.structural_equal, value.indices, s.indices))
    )


def _sequence(steps: list[Step]) -> Step:
    steps = [step for step in steps if step is not _nothing]

    def run(lanes: Lanes) -> None:
        for step in steps:
            step(lanes)

    return run
