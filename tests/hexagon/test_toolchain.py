"""What is said of tools that are missing or too old."""

from pathlib import Path

import pytest

from tests.commands import Commands
from tests.hexagon.emulated import needs_emulator
from tvm_ext.backends.hexagon import toolchain
from tvm_ext.backends.hexagon.toolchain import CLANG, EMULATOR, LLD, TOOLS, Found, Tool, complaint, find, program
from tvm_ext.errors import MissingPackageError


def script(folder: Path, name: str, says: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)


def test_nothing_is_said_of_what_is_there() -> None:
    assert complaint([Found(CLANG, "/bin/clang-19", (19, 1, 7)), Found(EMULATOR, "/bin/qemu-hexagon", (7, 2, 0))]) == ""


def test_one_command_installs_all_that_is_missing() -> None:
    found = [Found(CLANG), Found(LLD, "/bin/ld.lld-19", (19, 1)), Found(EMULATOR, "/bin/qemu-hexagon", (6, 0))]
    assert complaint(found) == (
        "Hexagon code cannot be run here: clang (assembles kernels, compiles the runtime): not found; qemu-hexagon "
        "(runs and counts them): /bin/qemu-hexagon is version 6.0, and 7.2 is needed; install with: apt-get install "
        "clang-19 qemu-user"
    )


def test_the_first_that_is_new_enough_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "one", "one version 3.1")
    script(tmp_path, "two", "two version 5.0.2")
    monkeypatch.setenv("PATH", str(tmp_path))
    tool = Tool("tool", "is tried", ("absent", "one", "two"), (4, 0), "tool")
    assert find(tool) == Found(tool, str(tmp_path / "two"), (5, 0, 2))
    old = Tool("tool", "is tried", ("absent", "one"), (4, 0), "tool")
    assert find(old).fault == f"{tmp_path / 'one'} is version 3.1, and 4.0 is needed"


def test_a_program_without_a_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "one", "hello")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "does not say its version" in find(Tool("tool", "is tried", ("one",), (4, 0), "tool")).fault


def test_a_missing_program_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "installed", lambda: (Found(CLANG), Found(LLD), Found(EMULATOR)))
    with pytest.raises(MissingPackageError, match="apt-get install clang-19 lld-19 qemu-user"):
        program(LLD)


def test_doctor_without_programs(commands: Commands, tmp_path: Path) -> None:
    result = commands("hexagon", "doctor", environment={"PATH": str(tmp_path)})
    assert result.code == 10
    assert "apt-get install clang-19 lld-19 qemu-user" in result.stderr


@needs_emulator
def test_doctor(commands: Commands) -> None:
    result = commands("hexagon", "doctor")
    assert (result.code, result.stderr) == (0, "")
    assert "qemu-hexagon runs and counts them: " in result.stdout


def test_a_tool_that_is_installed_later_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[str] = []

    def find(tool: Tool) -> Found:
        there.append(tool.name)
        return Found(tool) if len(there) <= len(TOOLS) else Found(tool, "/usr/bin/tool", (99, 0))

    monkeypatch.setattr(toolchain, "_found", {})
    monkeypatch.setattr(toolchain, "find", find)
    assert "not found" in toolchain.complaint()
    assert toolchain.complaint() == ""
    calls = len(there)
    assert toolchain.complaint() == ""
    assert len(there) == calls
