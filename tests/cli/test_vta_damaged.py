"""Damaged and empty streams on the command line: one sentence that names the file, no traceback, nothing endless."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.vta.recordings import GOLDEN
from tvm_ext.backends.vta.config import load_config
from tvm_ext.backends.vta.isa.instructions import Finish, Gemm, encode_program
from tvm_ext.cli.vta import command
from tvm_ext.errors import CheckError, TvmExtError, VTAConfigError, VTAProgramError

# Of one configuration, whose simulator is compiled once.
RECORDINGS = [path for path in GOLDEN if path.stem[:2] in ("01", "03", "09", "12", "22", "28", "32")]
COMMANDS = ("replay", "lint", "cycles", "disasm")


def arrays_of(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def invoke(*arguments: str) -> BaseException | None:
    """What a command raised, None if it went well."""
    result = CliRunner().invoke(command, arguments, standalone_mode=False)
    return None if isinstance(result.exception, SystemExit) else result.exception


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.slow] * (seed > 3)) for seed in range(8)])
def test_flipped_bits(seed: int, tmp_path: Path) -> None:
    """Whatever a stream is made of, the commands refuse it by file and instruction, or do what it says."""
    rng = np.random.default_rng(seed)
    arrays = arrays_of(RECORDINGS[seed % len(RECORDINGS)])
    words = arrays["insns"].copy()
    for _ in range(int(rng.integers(1, 6))):
        words[rng.integers(len(words)), rng.integers(2)] ^= np.uint64(1) << np.uint64(rng.integers(64))
    path = save(tmp_path / "damaged.npz", **arrays | {"insns": words})
    for name in COMMANDS:
        limit = ["--max-steps", str(1 << 20)] if name in ("replay", "lint") else []
        error = invoke(name, str(path), *limit)
        assert error is None or isinstance(error, TvmExtError), (name, error)
        if error is not None:
            assert "damaged.npz: " in str(error), (name, error)
            if isinstance(error, VTAProgramError):
                assert error.instruction is not None
                assert f"instruction {error.instruction}" in str(error)


@pytest.mark.parametrize("name", ["replay", "lint"])
def test_most_steps(name: str, tmp_path: Path) -> None:
    arrays = arrays_of(GOLDEN[0])
    config = load_config("sim")
    words = encode_program([Gemm(uop_end=3, iter_out=16383, iter_in=16383), Finish()], config)
    path = str(save(tmp_path / "long.npz", **arrays | {"insns": words}))
    error = invoke(name, path)
    assert isinstance(error, VTAProgramError)
    assert "instruction 0 (GEMM): the stream asks for 805208067 steps up to here, more than max_steps" in str(error)
    assert path in str(error)


@pytest.mark.slow
def test_as_many_steps_as_are_allowed(tmp_path: Path) -> None:
    words = encode_program([Gemm(uop_end=3, iter_out=16383, iter_in=16383), Finish()], load_config("sim"))
    path = str(save(tmp_path / "long.npz", **arrays_of(GOLDEN[0]) | {"insns": words}))
    assert isinstance(invoke("lint", path, "--max-steps", "900000000"), CheckError)  # hardware may do something else


@pytest.mark.parametrize("name", COMMANDS)
def test_empty_streams(name: str, tmp_path: Path) -> None:
    path = str(save(tmp_path / "empty.npz", **arrays_of(GOLDEN[0]) | {"insns": np.zeros((0, 2), np.uint64)}))
    error = invoke(name, path)
    if name in ("replay", "lint"):
        assert isinstance(error, VTAProgramError)
        assert "empty.npz" in str(error)
        assert "a stream ends with its only FINISH" in str(error)
    else:
        assert error is None


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("LOG_BLOCK", 9, "LOG_BLOCK"),
        ("LOG_UOP_BUFF_SIZE", 20, "LOG_UOP_BUFF_SIZE"),
        ("HW_VER", "0.0.1", "array 'isa' is 2"),
        ("LOG_ACC_BUFF_SIZE", "many", "LOG_ACC_BUFF_SIZE"),
    ],
)
def test_configurations_that_contradict(name: str, key: str, value: Any, message: str, tmp_path: Path) -> None:
    arrays = arrays_of(GOLDEN[0])
    config = json.loads(str(arrays["config"])) | {key: value}
    path = str(save(tmp_path / "other.npz", **arrays | {"config": np.array(json.dumps(config))}))
    error = invoke(name, path)
    assert isinstance(error, VTAConfigError | VTAProgramError), error
    assert "other.npz" in str(error)
    assert message in str(error)


def test_a_bare_stream_with_a_memory_that_does_not_exist(tmp_path: Path) -> None:
    config = load_config("sim")
    words = encode_program([Gemm(uop_end=1, iter_out=1, iter_in=1), Finish()], config)
    words[0] = (0b111 << 7, 0x10001)  # LOAD of memory type 7
    (tmp_path / "bare.bin").write_bytes(words.tobytes())
    error = invoke("cycles", str(tmp_path / "bare.bin"))
    assert isinstance(error, VTAProgramError)
    assert "bare.bin: instruction 0 (LOAD): memory_type is 7" in str(error)
