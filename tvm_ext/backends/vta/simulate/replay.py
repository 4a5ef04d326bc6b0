"""Run a recorded stream on both simulators, and compare DRAM with the recording.

A recording is a ``.npz`` file without pickled objects; docs/vta.md lists its arrays.
"""

from __future__ import annotations

import json
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.isa.instructions import Words, as_words
from tvm_ext.backends.vta.memory import ADDRESS_SPACE, SimulationResult, check_image
from tvm_ext.backends.vta.simulate.base import MAX_STEPS
from tvm_ext.backends.vta.simulate.reference import ReferenceSimulator
from tvm_ext.backends.vta.simulate.simulator import Simulator
from tvm_ext.errors import VTAConfigError, VTAProgramError
from tvm_ext.system.files import require_regular

# What zipfile and numpy raise for files that are no archives of plain arrays.
_UNREADABLE = (
    ValueError, TypeError, OverflowError, SyntaxError, EOFError, KeyError, NotImplementedError, RuntimeError,
    tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip

SIMULATORS: dict[str, type[ReferenceSimulator | Simulator]] = {
    "reference": ReferenceSimulator,
    "compiled": Simulator,
}


@dataclass(frozen=True)
class Recording:
    """A stream, and DRAM before and after it ran.

    Attributes
    ----------
    path : Path
    config : VTAConfig
    words : NDArray[np.uint64]
        Instructions, [instructions, 2].
    base : int
        Address of the first byte of the images.
    before, after : NDArray[np.uint8]
        DRAM images.
    description : str
    regions : list of dict
        Buffers of the image: ``name``, ``phys`` (address), ``bytes``; empty if the file does not say.
    """

    path: Path
    config: VTAConfig
    words: Words
    base: int
    before: NDArray[np.uint8]
    after: NDArray[np.uint8]
    description: str
    regions: list[dict[str, Any]]

    def place(self, address: int) -> str:
        """Say in which buffer an address lies."""
        for region in self.regions:
            if region["phys"] <= address < region["phys"] + region["bytes"]:
                return f"{address:#x} (buffer {region['name']} + {address - region['phys']:#x})"
        return f"{address:#x}"


@dataclass(frozen=True)
class Difference:
    """Where a simulator's image leaves the recording: the first address, both bytes there, how many bytes differ."""

    simulator: str
    address: int
    expected: int
    found: int
    count: int


def load_recording(path: str | Path, config: VTAConfig | None = None) -> Recording:
    """Load a recording.

    Parameters
    ----------
    path : str or Path
    config : VTAConfig, optional
        Accelerator to run it on, instead of the one that the file names.

    Raises
    ------
    VTAProgramError
        If the file cannot be read, or an array of it is missing or has a wrong form; the message names it.
    VTAConfigError
        If the file's configuration is not legal.
    """
    path = Path(path)
    arrays = _read(path)
    if config is None:
        config = _config(path, arrays)
        isa = int(_number(path, arrays, "isa"))
        if isa != config.isa:
            raise VTAProgramError(
                f"{path}: array 'isa' is {isa}, but the configuration's HW_VER {config.hw_ver} is generation "
                f"{config.isa}; one of them is wrong"
            )
    stream = _array(path, arrays, "insns")
    try:
        words = as_words(stream)
    except VTAProgramError as error:
        raise VTAProgramError(f"{path}: array 'insns': {error}") from None
    base = _number(path, arrays, "dram_base")
    before, after = _array(path, arrays, "dram_before"), _array(path, arrays, "dram_after")
    for name, image in (("dram_before", before), ("dram_after", after)):
        try:
            check_image(image, base)
        except VTAProgramError as error:
            raise VTAProgramError(f"{path}: array {name!r}: {error}") from None
    if before.shape != after.shape:
        raise VTAProgramError(
            f"{path}: array 'dram_after' has {after.size} bytes and 'dram_before' {before.size}; expected equal images"
        )
    return Recording(path, config, words, base, before, after, _text(arrays, "description"), _regions(arrays))


def replay(recording: Recording, max_steps: int = MAX_STEPS) -> tuple[dict[str, SimulationResult], Difference | None]:
    """Run a recording on both simulators.

    Parameters
    ----------
    recording : Recording
    max_steps : int
        Most steps of GEMM and ALU that the stream may ask for.

    Returns
    -------
    results : dict of str to SimulationResult
        By the simulator's name.
    difference : Difference or None
        The first one found, None if both images equal the recording's.

    Raises
    ------
    VTAProgramError
        If the stream is refused.
    """
    results = {}
    for name in SIMULATORS:
        result = simulate(recording, name, max_steps)
        results[name] = result
        wrong = np.flatnonzero(result.dram != recording.after)
        if wrong.size:
            at = int(wrong[0])
            expected, found = int(recording.after[at]), int(result.dram[at])
            return results, Difference(name, recording.base + at, expected, found, wrong.size)
    return results, None


def simulate(recording: Recording, simulator: str, max_steps: int) -> SimulationResult:
    """Run a recording on one of :data:`SIMULATORS`; an error names the file as well."""
    try:
        chosen = SIMULATORS[simulator](recording.config)
        return chosen.run(recording.words, recording.before, recording.base, max_steps)
    except VTAProgramError as error:
        message = f"{recording.path}: {simulator} simulator: {error}"
        raise VTAProgramError(message, instruction=error.instruction, field=error.field) from None


def _read(path: Path) -> dict[str, NDArray]:
    require_regular(path, VTAProgramError)
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > 3 * ADDRESS_SPACE:
                raise VTAProgramError(f"{path}: its arrays are larger than what VTA can address; not a recording")
            if (damaged := archive.testzip()) is not None:
                raise VTAProgramError(f"{path}: its member {damaged!r} is damaged; copy the file again")
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except OSError as error:
        raise VTAProgramError(f"cannot read {path}: {error.strerror or error}; give a .npz recording") from None
    except _UNREADABLE as error:
        raise VTAProgramError(f"{path}: not a readable .npz file without pickled objects: {error}") from None
    except MemoryError:
        raise VTAProgramError(f"{path}: its arrays do not fit this machine's memory") from None


def _array(path: Path, arrays: dict[str, NDArray], name: str) -> NDArray:
    if name not in arrays:
        found = ", ".join(sorted(arrays)) or "none"
        raise VTAProgramError(f"{path}: array {name!r} is missing, found {found}; docs/vta.md lists what it needs")
    return arrays[name]


def _number(path: Path, arrays: dict[str, NDArray], name: str) -> int:
    array = _array(path, arrays, name)
    if array.shape != () or array.dtype.kind not in "iu" or int(array) < 0:
        raise VTAProgramError(f"{path}: array {name!r} is {array.dtype}{list(array.shape)}; expected one whole number")
    return int(array)


def _text(arrays: dict[str, NDArray], name: str) -> str:
    return str(arrays[name]) if name in arrays else ""


def _config(path: Path, arrays: dict[str, NDArray]) -> VTAConfig:
    try:
        values = json.loads(str(_array(path, arrays, "config")))
    except (ValueError, RecursionError) as error:
        raise VTAProgramError(f"{path}: array 'config' is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise VTAConfigError(f"{path}: array 'config' is not a JSON object")
    return VTAConfig.from_json(values, f"{path}: array 'config'")


def _regions(arrays: dict[str, NDArray]) -> list[dict[str, Any]]:
    """Names of buffers, for messages only: a file that spells them otherwise has none."""
    try:
        regions = json.loads(_text(arrays, "regions") or "[]")
        return [{"name": str(r["name"]), "phys": int(r["phys"]), "bytes": int(r["bytes"])} for r in regions]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return []
