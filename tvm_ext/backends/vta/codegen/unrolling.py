"""Runs the loops around the blocks of a scheduled function, once for each turn, and lists what the blocks do.

Virtual threads take turns block by block, so that one loads while the other multiplies. What a block does in one turn
is evaluated with numpy: a load or store becomes transfers, a product or an ALU operation a list of steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx

from tvm_ext.backends.vta.codegen.nests import (
    Access,
    BufferInfo,
    Group,
    Kind,
    Loop,
    Nest,
    Node,
    Operation,
    Scheduled,
    Scope,
)
from tvm_ext.backends.vta.codegen.placement import Place, Tile, place_tiles
from tvm_ext.backends.vta.codegen.scheduled import read_scheduled
from tvm_ext.backends.vta.codegen.steps import product_steps
from tvm_ext.backends.vta.codegen.storage import Storage, share_storage
from tvm_ext.backends.vta.codegen.transfers import ANYTHING, ZERO, Transfer, find_transfers
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.errors import VTAProgramError

Table = NDArray[np.int64]


@dataclass(frozen=True)
class Block:
    """What one block does in one turn of the loops around it; indices count from the start of the tiles.

    Attributes
    ----------
    nest : Nest
    tiles : tuple of int
        Numbers of the tiles: the target's, then those of the sources; -1 for DRAM.
    transfers : tuple of Transfer
        Of a load or store.
    steps : Table
        Of GEMM [steps, 3], of ALU and resets [steps, 2]: indices in the tiles.
    operation : Operation or None
        Of ALU.
    """

    nest: Nest
    tiles: tuple[int, ...]
    transfers: tuple[Transfer, ...] = ()
    steps: Table = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    operation: Operation | None = None


@dataclass
class Plan:
    """A function unrolled into blocks, and the tiles they work on.

    Attributes
    ----------
    parameters : list of BufferInfo
    blocks : list of Block
    tiles : list of Tile
    places : list of Place
    """

    parameters: list[BufferInfo]
    blocks: list[Block]
    tiles: list[Tile]
    places: list[Place]


def plan_program(func: tirx.PrimFunc, config: VTAConfig, turns: int = 2) -> Plan:
    """Unroll a scheduled function and place its tiles.

    Raises
    ------
    VTAProgramError
        As :func:`generate`.
    """
    scheduled = read_scheduled(func, config)
    walker = _Walker(scheduled, share_storage(scheduled))
    walker.walk(scheduled.body, [_Thread({}, {})])
    tiles = walker.finish()
    sizes = {"inp": config.inp_bytes, "wgt": config.wgt_bytes, "acc": config.acc_bytes}
    depths = {memory: config.depths[memory] for memory in sizes}
    return Plan(scheduled.parameters, walker.blocks, tiles, place_tiles(tiles, depths, sizes, turns))


@dataclass
class _Thread:
    """One virtual thread: its loop variables, and the tiles of the buffers that are alive."""

    variables: dict[int, Any]
    tiles: dict[BufferInfo, int]


@dataclass
class _TileUse:
    """What is known of a tile while the blocks are listed."""

    buffer: BufferInfo
    block: str = ""
    first: int = -1
    last: int = -1
    loads: list[Any] = field(default_factory=list)
    changed: bool = False
    is_read: bool = False
    zeros: NDArray[np.bool_] | None = None  # elements that are padding
    problem: VTAProgramError | None = None


class _Walker:
    """Runs the loops around the blocks."""

    def __init__(self, scheduled: Scheduled, storage: Storage) -> None:
        self.storage = storage
        self.blocks: list[Block] = []
        self.uses: list[_TileUse] = []
        self._tables: dict[Any, Any] = {}
        self._zeros: dict[bytes, NDArray[np.bool_]] = {}
        # What shares a place lives as long as the longest of them.
        self._shapes = {
            storage.find(nest.target.buffer): nest.target.buffer for nest in scheduled.nests if nest.target.buffer.size
        }

    def walk(self, node: Node, threads: list[_Thread]) -> None:
        """Run a node in all threads, each block in one after the other."""
        if isinstance(node, Group):
            for part in node.body:
                self.walk(part, threads)
        elif isinstance(node, Scope):
            inner = []
            for thread in threads:
                tiles = dict(thread.tiles)
                for buffer in node.buffers:
                    root = self.storage.find(buffer)
                    if root not in tiles:
                        tiles[root] = len(self.uses)
                        self.uses.append(_TileUse(root))
                inner.append(_Thread(dict(thread.variables), tiles))
            self.walk(node.body, inner)
        elif isinstance(node, Loop):
            extent = {int(node.extent(thread.variables)) for thread in threads}
            if len(extent) != 1:
                raise VTAProgramError("virtual threads run loops of different lengths; choose tiles that divide")
            turns = range(extent.pop())
            if node.is_virtual:
                inner = [
                    _Thread({**thread.variables, node.variable: turn}, dict(thread.tiles))
                    for thread in threads
                    for turn in turns
                ]
                self.walk(node.body, inner)
            else:
                for turn in turns:
                    for thread in threads:
                        thread.variables[node.variable] = turn
                    self.walk(node.body, threads)
        else:
            for thread in threads:
                self._run(node, thread)

    def _run(self, nest: Nest, thread: _Thread) -> None:
        if nest in self.storage.skipped:
            return
        key = (nest, *(thread.variables[number] for number in sorted(nest.outer)))
        zeros = None
        if nest.kind == Kind.GEMM:
            zeros = self.uses[self._tile(nest.sources[0], thread)].zeros
            key = (*key, id(zeros))
        found = self._tables.get(key)
        if found is None:
            found = self._tables[key] = self._evaluate(nest, thread, zeros)
        if isinstance(found, VTAProgramError):
            self.uses[self._tile(nest.target, thread)].problem = found
            return
        if nest.kind in (Kind.LOAD, Kind.STORE):
            transfers = found[0]
            if nest.kind == Kind.LOAD:
                self.uses[self._tile(nest.target, thread)].zeros = found[2]
            if transfers and nest.moving is not None:
                distance = self._first(nest, thread) - found[1]
                transfers = tuple(part.moved(distance) for part in transfers) if distance else transfers
            if transfers:
                self._append(Block(nest, self._tiles(nest, thread), transfers))
            return
        tables: list[tuple[Operation | None, Table]] = found
        for operation, steps in tables:
            if len(steps):
                tiles = self._tiles(nest, thread)
                if operation is not None and isinstance(operation.right, Access):
                    tiles = (tiles[0], self._tile(operation.right, thread))
                elif operation is not None:
                    tiles = (tiles[0], tiles[0])
                self._append(Block(nest, tiles, (), steps, operation))

    def _first(self, nest: Nest, thread: _Thread) -> int:
        """Element of DRAM that the first turn of the loops of a load or store touches."""
        access = nest.target if nest.moving is None else nest.moving
        return int(access.element({**thread.variables, **dict.fromkeys((number for number, _ in nest.loops), 0)}))

    def _tiles(self, nest: Nest, thread: _Thread) -> tuple[int, ...]:
        return tuple(self._tile(access, thread) for access in (nest.target, *nest.sources))

    def _tile(self, access: Access, thread: _Thread) -> int:
        if access.buffer.memory == "dram":
            return -1
        return thread.tiles[self.storage.find(access.buffer)]

    def _append(self, block: Block) -> None:
        number = len(self.blocks)
        self.blocks.append(block)
        for position, tile in enumerate(block.tiles):
            if tile < 0:
                continue
            use = self.uses[tile]
            if use.first < 0:
                use.first, use.block = number, block.nest.block
            use.last = number
            if position == 0 and block.nest.kind == Kind.LOAD:
                # A load after the first use changes what was loaded before.
                use.changed |= use.is_read
                use.loads.append((block.nest.sources[0].buffer, block.transfers))
            elif position == 0:
                use.changed = True
            else:
                use.is_read = True

    def finish(self) -> list[Tile]:
        """List the tiles; those that nothing reads, as those of threads beyond the end, have no elements.

        Raises
        ------
        VTAProgramError
            If something is read that cannot be loaded.
        """
        found = []
        groups = {buffer: number for number, buffer in enumerate(dict.fromkeys(use.buffer for use in self.uses))}
        for use in self.uses:
            if use.is_read and use.problem is not None:
                raise use.problem
            contents = None if use.changed or not use.loads else tuple(use.loads)
            name = f"block {use.block!r}, buffer {use.buffer.name}"
            size = use.buffer.size if use.is_read else 0
            found.append(Tile(name, use.buffer.memory, size, use.first, use.last, contents, group=groups[use.buffer]))
        return found

    def _evaluate(self, nest: Nest, thread: _Thread, zeros: NDArray[np.bool_] | None) -> Any:
        """Evaluate the indices of a nest for the variables of the loops around it; ``zeros`` are inputs that are 0."""
        extents = [int(extent(thread.variables)) for _, extent in nest.loops]
        grid = _grid(tuple(extents))
        environment = {**thread.variables}
        for (variable, _), values in zip(nest.loops, grid, strict=True):
            environment[variable] = values
        shape = tuple(extents)

        def table(function: Any) -> NDArray:
            return np.broadcast_to(np.asarray(function(environment)), shape)

        keep = np.ones(shape, bool)
        for condition in nest.conditions:
            keep = keep & table(condition)
        target = table(nest.target.element)
        if nest.kind in (Kind.LOAD, Kind.STORE):
            source = table(nest.sources[0].element)
            dram = source if nest.kind == Kind.LOAD else target
            if nest.inside is not None:
                dram = np.where(table(nest.inside), dram, ZERO)
            transfers = self._transfers(nest, target if nest.kind == Kind.LOAD else source, dram, keep)
            if isinstance(transfers, VTAProgramError):
                return transfers
            return transfers, self._first(nest, thread), self._padding(nest, target, dram)
        if nest.kind == Kind.GEMM:
            inp, wgt = (table(access.element) for access in nest.sources)
            return [(None, steps) for steps in product_steps((target, inp, wgt), keep, zeros)]
        steps = np.stack([target[keep], target[keep]], axis=-1).reshape(-1, 2)
        if nest.kind == Kind.RESET:
            return [(None, steps), *((operation, steps) for operation in nest.operations)]
        found = []
        for operation in self.storage.operations[nest]:
            right = target if not isinstance(operation.right, Access) else table(operation.right.element)
            found.append((operation, np.stack([target[keep], right[keep]], axis=-1).reshape(-1, 2)))
        return found

    def _padding(self, nest: Nest, target: NDArray, dram: NDArray) -> NDArray[np.bool_] | None:
        """Return which elements of a tile a load fills with zeros, None if none; equal ones are one object."""
        if nest.inside is None or not (dram == ZERO).any():
            return None
        zeros = np.zeros(nest.target.buffer.size, bool)
        zeros[target.ravel()] = (dram == ZERO).ravel()
        return self._zeros.setdefault(zeros.tobytes(), zeros)

    def _transfers(
        self, nest: Nest, sram: NDArray, dram: NDArray, keep: NDArray
    ) -> tuple[Transfer, ...] | VTAProgramError:
        buffer = (nest.target if nest.kind == Kind.LOAD else nest.sources[0]).buffer
        dram = np.where(keep, dram, ANYTHING)
        try:
            return tuple(find_transfers(sram.ravel(), dram.ravel(), buffer.plane, buffer.memory == "inp"))
        except VTAProgramError as error:
            problem = VTAProgramError(f"block {nest.block!r}, buffer {buffer.name}: {error}")
            if nest.kind == Kind.LOAD:
                return problem  # an error only if what should be loaded is used
            raise problem from None


@lru_cache(maxsize=1024)
def _grid(extents: tuple[int, ...]) -> tuple[NDArray, ...]:
    return tuple(np.ogrid[tuple(slice(extent) for extent in extents)]) if extents else ()
