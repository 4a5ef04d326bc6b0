from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.vta.recordings import GOLDEN, NAMES
from tvm_ext.backends.vta.config import load_config
from tvm_ext.backends.vta.simulate.replay import load_recording, replay
from tvm_ext.errors import VTAConfigError, VTAProgramError

TINY = GOLDEN[0]


def changed(tmp_path: Path, **changes: Any) -> Path:
    """Copy a recording with some arrays replaced, or left out where None is given."""
    with np.load(TINY) as arrays:
        contents = {name: arrays[name] for name in arrays.files} | changes
    path = tmp_path / "changed.npz"
    np.savez(path, **{name: value for name, value in contents.items() if value is not None})
    return path


@pytest.mark.parametrize("path", GOLDEN, ids=NAMES)
def test_recordings_pass(path: Path) -> None:
    results, difference = replay(load_recording(path))
    assert difference is None
    assert set(results) == {"reference", "compiled"}


def test_the_first_difference_is_named(tmp_path: Path) -> None:
    recording = load_recording(TINY)
    region = next(region for region in recording.regions if region["name"].startswith("out"))
    after = recording.after.copy()
    at = region["phys"] + 5 - recording.base
    after[[at, at + 9]] ^= 0x40
    different = load_recording(changed(tmp_path, dram_after=after))
    _, difference = replay(different)
    assert difference is not None
    assert (difference.simulator, difference.address, difference.count) == ("reference", region["phys"] + 5, 2)
    assert difference.expected == difference.found ^ 0x40
    assert different.place(difference.address) == f"{difference.address:#x} (buffer {region['name']} + 0x5)"
    assert different.place(0x10) == "0x10"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"insns": None}, r"array 'insns' is missing, found .*; docs/vta\.md lists what it needs"),
        ({"insns": np.zeros((3, 2))}, r"array 'insns': an instruction stream is a uint64 array"),
        ({"dram_base": None}, r"array 'dram_base' is missing"),
        ({"dram_base": np.array([1, 2])}, r"array 'dram_base' is int64\[2\]; expected one whole number"),
        ({"dram_base": np.array(-4)}, r"array 'dram_base' is int64"),
        ({"dram_base": np.array(1.5)}, r"array 'dram_base' is float64"),
        ({"dram_base": np.uint64(1 << 32)}, r"array 'dram_before': .* within 32-bit addresses; found uint8"),
        ({"dram_before": np.zeros(3, np.int8)}, r"array 'dram_before': .* found int8\[3\] from address 0x1000"),
        ({"dram_after": np.zeros((2, 2), np.uint8)}, r"array 'dram_after': .* found uint8\[2, 2\]"),
        ({"dram_after": np.zeros(4096, np.uint8)}, r"array 'dram_after' has 4096 bytes and 'dram_before' 20480"),
        ({"isa": np.int64(1)}, r"array 'isa' is 1, but the configuration's HW_VER 0\.0\.2 is generation 2"),
        ({"config": "no"}, r"array 'config' is not JSON"),
        ({"config": np.array([object()])}, r"not a readable \.npz file without pickled objects"),
    ],
)
def test_damaged_recordings(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(VTAProgramError, match=rf"^[^:]*changed\.npz: {message}"):
        load_recording(changed(tmp_path, **changes))


def test_an_illegal_configuration_in_a_recording(tmp_path: Path) -> None:
    values = load_config("sim").to_json()
    for config, message in ((json.dumps({**values, "LOG_BLOCK": 12}), "LOG_BLOCK is 12"), ("3", "not a JSON object")):
        with pytest.raises(VTAConfigError, match=rf"changed\.npz: array 'config'.* {message}"):
            load_recording(changed(tmp_path, config=config))


@pytest.mark.parametrize(
    "regions",
    [
        "[1]",
        "{",
        '[{"name": 3}]',
        '[{"name": "x", "phys": 1e400, "bytes": 8}]',
        '[{"name": "x", "phys": "y", "bytes": 3}]',
    ],
)
def test_names_of_buffers_are_a_courtesy(tmp_path: Path, regions: str) -> None:
    recording = load_recording(changed(tmp_path, regions=regions))
    assert recording.regions == []
    assert replay(recording)[1] is None


def test_files_that_are_no_recordings(tmp_path: Path) -> None:
    with pytest.raises(VTAProgramError, match=r"cannot read .*none\.npz: No such file or directory; give a \.npz"):
        load_recording(tmp_path / "none.npz")
    with pytest.raises(VTAProgramError, match=r"cannot read .*: Is a directory"):
        load_recording(tmp_path)
    path = tmp_path / "bad.npz"
    content = TINY.read_bytes()
    for damaged in (b"", b"PK\x03\x04", content[:900], content[:-30]):
        path.write_bytes(damaged)
        with pytest.raises(VTAProgramError, match=r"bad\.npz: (not a readable \.npz file|its member)"):
            load_recording(path)


def test_damaged_bytes_never_pass_for_another_recording(tmp_path: Path) -> None:
    content = TINY.read_bytes()
    rng = np.random.default_rng(0)
    path = tmp_path / "bad.npz"
    for _ in range(150):
        damaged = bytearray(content)
        for at in rng.integers(0, len(content), 1 + rng.integers(4)):
            damaged[at] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            _, difference = replay(load_recording(path))
        except (VTAProgramError, VTAConfigError):
            continue
        assert difference is None  # the damage fell on something that is not read


def test_another_configuration_can_be_asked_for() -> None:
    recording = load_recording(TINY, load_config("pynq_0.0.1"))
    with pytest.raises(
        VTAProgramError, match=r"01_tiny_end_to_end\.npz: reference simulator: instruction \d+ .*0\.0\.2"
    ):
        replay(recording)
