"""Which buffers share their place: VTA's ALU overwrites its left operand, and GEMM adds to what is there.

An element-wise block gets its result where its left operand was. A block that adds two sums of products needs no
operation at all: the second sum is accumulated on top of the first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tvm_ext.backends.vta.codegen.nests import Access, BufferInfo, Kind, Nest, Operation, Scheduled, same_elements
from tvm_ext.backends.vta.isa.instructions import AluOpcode
from tvm_ext.errors import VTAProgramError


@dataclass
class Storage:
    """What shares a place, and what is left to do.

    Attributes
    ----------
    root : dict
        For each buffer the one that stands for all that share its place.
    operations : dict
        For each element-wise nest what ALU still has to do.
    skipped : set of Nest
        Resets of sums that go on top of others.
    """

    root: dict[BufferInfo, BufferInfo] = field(default_factory=dict)
    operations: dict[Nest, list[Operation]] = field(default_factory=dict)
    skipped: set[Nest] = field(default_factory=set)

    def find(self, buffer: BufferInfo) -> BufferInfo:
        """Return the buffer that stands for all that share the place of this one."""
        while self.root.get(buffer, buffer) is not buffer:
            buffer = self.root[buffer]
        return buffer


def share_storage(scheduled: Scheduled) -> Storage:
    """Decide which buffers share their place.

    Raises
    ------
    VTAProgramError
        If an operand that is overwritten is needed again.
    """
    storage = Storage()
    readers: dict[BufferInfo, set[Nest]] = {}
    writers: dict[BufferInfo, list[Nest]] = {}
    for nest in scheduled.nests:
        rights = [operation.right for operation in nest.operations if isinstance(operation.right, Access)]
        for access in (*nest.sources, *rights):
            if access.buffer is not nest.target.buffer:
                readers.setdefault(access.buffer, set()).add(nest)
        writers.setdefault(nest.target.buffer, []).append(nest)
    sums = {
        buffer
        for buffer, nests in writers.items()
        if {nest.kind for nest in nests} == {Kind.RESET, Kind.GEMM}
        and not any(nest.operations for nest in nests if nest.kind == Kind.RESET)
    }
    order = {nest: number for number, nest in enumerate(scheduled.nests)}
    for nest in scheduled.nests:
        if nest.kind != Kind.ALU:
            continue
        target, (left,) = nest.target, nest.sources
        operations = list(nest.operations)
        if left.buffer is not target.buffer:
            _join(storage, nest, target, left, readers, writers)
            while operations and (right := _added_sum(operations[0], target, sums, readers)) is not None:
                before, added = (_members(storage, writers, buffer) for buffer in (left.buffer, right))
                before = [known for known in before if known is not nest]
                resets = [known for known in before + added if known.kind == Kind.RESET]
                if left.buffer in sums:
                    # Additions commute: the first reset is the one that counts.
                    first = min((known for known in resets if known not in storage.skipped), key=order.__getitem__)
                    storage.skipped |= set(resets) - {first}
                elif max(map(order.__getitem__, before)) < min(
                    order[known] for known in added if known.kind == Kind.GEMM
                ):
                    storage.skipped |= {known for known in added if known.kind == Kind.RESET}
                else:
                    break  # it would be added to something else than what is meant
                operations.pop(0)
                storage.root[storage.find(right)] = storage.find(left.buffer)
            if left.buffer in sums and not operations:
                sums.add(target.buffer)
        storage.operations[nest] = operations
        for operation in operations:
            right_access = operation.right
            if isinstance(right_access, Access) and storage.find(right_access.buffer) is storage.find(target.buffer):
                raise VTAProgramError(
                    f"block {nest.block!r}: the right operand {right_access.buffer.name} lies where the result goes"
                )
    return storage


def _join(
    storage: Storage,
    nest: Nest,
    target: Access,
    left: Access,
    readers: dict[BufferInfo, set[Nest]],
    writers: dict[BufferInfo, list[Nest]],
) -> None:
    """Let the result of a block take the place of its left operand."""
    name = left.buffer.name
    if readers[left.buffer] != {nest}:
        others = ", ".join(sorted(other.block for other in readers[left.buffer] - {nest}))
        raise VTAProgramError(
            f"block {nest.block!r}: its result takes the place of {name}, which block {others} reads as well; "
            "compute it once for each"
        )
    if not same_elements(target, left) or writers[target.buffer] != [nest]:
        raise VTAProgramError(
            f"block {nest.block!r}: its result takes the place of its left operand {name}, "
            "so both must have the same shape and indices"
        )
    storage.root[storage.find(target.buffer)] = storage.find(left.buffer)


def _added_sum(
    operation: Operation, target: Access, sums: set[BufferInfo], readers: dict[BufferInfo, set[Nest]]
) -> BufferInfo | None:
    """Return the sum of products that an operation adds, element by element, if nothing else reads it."""
    right = operation.right
    if operation.opcode != AluOpcode.ADD or not isinstance(right, Access) or right.buffer not in sums:
        return None
    return right.buffer if len(readers[right.buffer]) == 1 and same_elements(right, target) else None


def _members(storage: Storage, writers: dict[BufferInfo, list[Nest]], buffer: BufferInfo) -> list[Nest]:
    """Nests that write what shares the place of a buffer."""
    root = storage.find(buffer)
    return [nest for known, nests in writers.items() if storage.find(known) is root for nest in nests]
