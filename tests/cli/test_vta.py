from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.commands import Commands
from tests.processes import output_of
from tests.vta.recordings import GOLDEN
from tvm_ext.backends.vta.isa.assembler import assemble_program
from tvm_ext.backends.vta.isa.instructions import encode_program
from tvm_ext.backends.vta.simulate.replay import load_recording

TINY = next(path for path in GOLDEN if path.stem == "01_tiny_end_to_end")


def test_disasm_prints_what_can_be_assembled(commands: Commands) -> None:
    result = commands("vta", "disasm", "--uops", str(TINY))
    assert (result.code, result.stderr) == (0, "")
    recording = load_recording(TINY)
    np.testing.assert_array_equal(encode_program(assemble_program(result.stdout), recording.config), recording.words)
    assert "HW_VER 0.0.2" in result.stdout.splitlines()[0]
    assert ";   uop 1: dst_idx=1 src_idx=1 wgt_idx=0" in result.stdout


def test_disasm_of_a_bare_stream(commands: Commands, tmp_path: Path) -> None:
    recording = load_recording(TINY)
    path = tmp_path / "stream.bin"
    path.write_bytes(recording.words.tobytes())
    result = commands("vta", "disasm", "--config", "pynq", str(path))
    assert result.stdout.count("\n") == 1 + len(recording.words)
    assert "LOAD UOP dram_base=0x400 y_size=1 x_size=2 x_stride=2" in result.stdout
    path.write_bytes(b"0" * 17)
    commands("vta", "disasm", str(path)).error(13, "has 17 bytes; a stream has 16 an instruction")
    path.write_bytes(b"\x07" + bytes(15))
    commands("vta", "disasm", str(path)).error(13, "instruction 0: opcode 7 is not defined")
    commands("vta", "disasm", str(tmp_path / "none")).error(13, "cannot read", "No such file or directory")
    commands("vta", "disasm", "--config", "nix", str(path)).error(12, "no VTA configuration 'nix'")


def test_replay_passes(commands: Commands) -> None:
    result = commands("vta", "replay", str(TINY))
    assert (result.code, result.stderr) == (0, "")
    assert result.stdout == f"{TINY}: PASS (10 instructions, 2 GEMM steps)\n"


def test_replay_names_the_first_difference(commands: Commands, tmp_path: Path) -> None:
    with np.load(TINY) as arrays:
        contents = {name: arrays[name] for name in arrays.files}
    contents["dram_after"][0x3007] ^= 0xFF
    path = tmp_path / "other.npz"
    np.savez(path, **contents)
    found = contents["dram_after"][0x3007] ^ 0xFF
    parts = ("reference simulator differs", "first at address 0x4007", f"found {found:#04x}; 1 bytes differ")
    commands("vta", "replay", str(path)).error(8, *parts)
    result = commands("vta", "replay", "--json", str(TINY), str(path))
    assert result.code == 8
    rows = json.loads(result.stdout)
    assert [row["pass"] for row in rows] == [True, False]
    assert rows[1]["difference"]["address"] == 0x4007


def test_replay_for_the_other_generation(commands: Commands) -> None:
    result = commands("vta", "replay", "--config", "pynq_0.0.1", str(TINY))
    result.error(13, "01_tiny_end_to_end.npz: reference simulator", "use a configuration with HW_VER 0.0.2")


def test_usage(commands: Commands) -> None:
    commands("vta", "replay").error(2, "Missing argument 'FILE...'")
    commands("vta", "fly").error(2, "No such command 'fly'")
    assert "disasm" in commands("vta").stdout + commands("vta").stderr


def test_cycles(commands: Commands, tmp_path: Path) -> None:
    picture = tmp_path / "timeline.png"
    result = commands("vta", "cycles", str(TINY), "--picture", str(picture))
    assert (result.code, result.stderr) == (0, "")
    assert picture.read_bytes().startswith(b"\x89PNG")
    report = json.loads(commands("vta", "cycles", "--json", "--costs", "chisel", str(TINY)).stdout)
    assert result.stdout.startswith(f"{TINY}: {report['cycles']} cycles (")
    assert report["gemm_steps"] == 2
    assert report["occupancy"] == 2 / report["cycles"]
    assert report["bytes_moved"]["instructions"] == 160
    commands("vta", "cycles", "--costs", "none", str(TINY)).error(2, "no cycle costs named 'none'")
    commands("vta", "cycles", str(TINY), "--picture", str(picture / "a" / "b.png")).error(7, "cannot write")
    commands("vta", "cycles", str(TINY), "--picture", str(tmp_path / "b.txt")).error(2, "must end in .png or .svg")


def test_counting_cycles_without_a_picture_does_not_import_tvm() -> None:
    source = f"""
        import sys
        from tvm_ext.cli.vta import command
        command(["cycles", {str(TINY)!r}], standalone_mode=False)
        print("tvm" in sys.modules)
    """
    assert output_of(source).splitlines()[-1] == "False"


def test_lint(commands: Commands) -> None:
    result = commands("vta", "lint", str(TINY))
    assert (result.code, result.stdout) == (0, f"{TINY}: portable\n")
    loud = TINY.with_name("19_alu_mul_imm.npz")
    result = commands("vta", "lint", str(loud))
    result.error(8, "19_alu_mul_imm.npz: 8 places where hardware differs from the simulators")
    assert result.stdout.splitlines()[0].endswith(
        "only simulators multiply in ALU; shift, or scale the weights [alu-mul]"
    )
