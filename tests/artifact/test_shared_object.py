from __future__ import annotations

import platform
import re
import resource
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tvm_ext
from tests.modules import Mlp, arguments
from tvm_ext.artifact import shared_object
from tvm_ext.artifact.compiled_model import METADATA, CompiledModel, load
from tvm_ext.artifact.shared_object import find_compiler
from tvm_ext.errors import CompileError, MissingPackageError, OutputError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class TestFullDisk:
    @pytest.mark.parametrize("size", ["4k", "12k", "24k", "32k", "44k", "56k"])
    def test_nothing_is_left_on_a_full_disk(
        self, compiled: CompiledModel, mount: Callable[..., Path], size: str
    ) -> None:
        disk = mount(f"size={size}")
        with pytest.raises(OutputError, match=r"cannot (write|create) .*: No space left on device"):
            compiled.save(disk / "a" / "model")
        assert names(disk) == []

    def test_no_more_files_can_be_made(self, compiled: CompiledModel, mount: Callable[..., Path]) -> None:
        disk = mount("size=10m,nr_inodes=4")
        with pytest.raises(OutputError, match="No space left on device; free some space or write elsewhere"):
            compiled.save(disk / "model")
        assert names(disk) == []

    def test_the_old_artifact_stays_when_there_is_no_space_for_the_new(
        self, compiled: CompiledModel, mount: Callable[..., Path]
    ) -> None:
        disk = mount("size=256k")
        compiled.save(disk / "model")
        before = (disk / "model" / METADATA).read_bytes()
        with pytest.raises(OSError, match="No space left"):
            (disk / "ballast").write_bytes(bytes(2**20))
        with pytest.raises(OutputError, match="No space left on device"):
            compiled.save(disk / "model", force=True)
        assert (disk / "model" / METADATA).read_bytes() == before
        assert load(disk / "model").outputs == compiled.outputs
        assert names(disk) == ["ballast", "model"]

    @pytest.mark.parametrize("limit", [500, 6_000, 30_000])
    def test_a_limit_on_file_sizes(self, compiled: CompiledModel, tmp_path: Path, limit: int) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(OutputError, match=r"cannot write .*model: File too large; raise the limit"):
                compiled.save(tmp_path / "model")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert names(tmp_path) == []


class TestLargeData:
    def test_stands_behind_code_and_its_variables(
        self, compiled: CompiledModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So that no distance between code and a variable grows with the weights: those are 32-bit numbers."""
        monkeypatch.setattr(shared_object, "LARGE", 0)
        compiled.save(tmp_path / "model")
        listed = subprocess.run(
            ["nm", str(tmp_path / "model" / "model.so")], capture_output=True, text=True, check=True
        ).stdout
        places = {name: int(place, 16) for place, _, name in re.findall(r"^([0-9a-f]+) (\S) (\S+)$", listed, re.M)}
        assert places.pop(shared_object.SYMBOL) > max(places.values())
        feeds = arguments(Mlp)
        (expected,), (result,) = compiled.run(feeds).values(), load(tmp_path / "model").run(feeds).values()
        np.testing.assert_array_equal(result, expected)


class TestCompiler:
    def test_none_on_path(self, compiled: CompiledModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CXX", raising=False)
        with pytest.raises(MissingPackageError, match=r"no C\+\+ compiler on PATH \(looked for g\+\+, clang"):
            compiled.save(tmp_path / "model")
        assert names(tmp_path) == []

    def test_one_that_refuses(self, compiled: CompiledModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        script = tmp_path / "refuses"
        script.write_text("#!/bin/sh\necho working...\necho 'x.o: error: I do not like it' >&2\nexit 3\n")
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))
        with pytest.raises(CompileError, match=r"the library could not be linked: x\.o: error: I do not like it"):
            compiled.save(tmp_path / "model")
        assert names(tmp_path) == ["refuses"]

    def test_one_that_fails_silently(
        self, compiled: CompiledModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CXX", "false")
        with pytest.raises(CompileError, match="the compiler ended with code 1 and said nothing"):
            compiled.save(tmp_path / "model")

    def test_another_architecture_needs_its_own(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(MissingPackageError, match=r"for s390x-linux-gnu on PATH \(looked for s390x-linux-gnu-g"):
            find_compiler("s390x-linux-gnu")
        with pytest.raises(MissingPackageError, match=r"install one \(Debian: g\+\+-aarch64-linux-gnu\), or"):
            find_compiler("arm64-linux-gnu")
        with pytest.raises(MissingPackageError, match=r"looked for hexagon-clang\+\+"):
            find_compiler("hexagon")
        cross = tmp_path / "s390x-linux-gnu-g++"
        cross.touch()
        cross.chmod(0o755)
        assert find_compiler("s390x-linux-gnu") == str(cross)

    @pytest.mark.parametrize(
        ("triple", "toolchain"),
        [
            ("armv7l-linux-gnueabihf", "arm-linux-gnueabihf"),
            ("thumbv7-unknown-linux-gnueabi", "arm-linux-gnueabi"),
            ("ppc64le-linux-gnu", "powerpc64le-linux-gnu"),
            ("i386-pc-linux-gnu", "i686-linux-gnu"),
            ("riscv64-linux", "riscv64-linux-gnu"),
        ],
    )
    def test_cross_compilers_as_distributions_call_them(
        self, triple: str, toolchain: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(MissingPackageError, match=rf"looked for {toolchain}-g\+\+.*Debian: g\+\+-{toolchain}\)"):
            find_compiler(triple)

    def test_another_c_library_is_no_package_of_debian(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(MissingPackageError, match=r"for aarch64-linux-musl-g\+\+\); install one, or name it"):
            find_compiler("aarch64-linux-musl")

    @pytest.mark.parametrize(
        "triple",
        ["arm64-apple-darwin", "x86_64-pc-windows-msvc", "arm64-apple-ios17.0", "aarch64-linux-android24", "wasm32"],
    )
    def test_another_system_needs_a_compiler_that_is_named(
        self, triple: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv("CXX", raising=False)
        with pytest.raises(MissingPackageError, match=f"{triple} is another operating system than this machine's"):
            find_compiler(triple)
        cross = tmp_path / "cross"
        cross.write_text("#!/bin/sh\necho arm64-apple-darwin\n")
        cross.chmod(0o755)
        monkeypatch.setenv("CXX", str(cross))
        assert find_compiler(triple) == str(cross)

    def test_the_compiler_of_this_machine_does_not_link_for_another(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        for name, machine in (("own", platform.machine()), ("cross", "s390x"), ("s390x-linux-gnu-g++", "s390x")):
            (tmp_path / name).write_text(f"#!/bin/sh\necho {machine}-linux-gnu\n")
            (tmp_path / name).chmod(0o755)
        for chosen, used in (("own", "s390x-linux-gnu-g++"), ("cross", "cross")):
            monkeypatch.setenv("CXX", str(tmp_path / chosen))
            assert find_compiler("s390x-linux-gnu") == str(tmp_path / used)
            assert find_compiler() == str(tmp_path / chosen)

    def test_c_code(self, tmp_path: Path) -> None:
        compiled = tvm_ext.compile(Mlp, "c")
        values = arguments(Mlp)
        result = load(compiled.save(tmp_path / "model")).run(values)["output"]
        np.testing.assert_allclose(result, tvm_ext.compile(Mlp).run(values)["output"], rtol=1e-5)


def test_an_interrupt_while_linking_ends_the_compiler_and_leaves_nothing(
    compiled: CompiledModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "slow"
    script.write_text(f"#!/bin/sh\nsleep 1000 & echo $! > {tmp_path}/child; sleep 0.5; kill -INT $PPID; wait\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    # The solver in TVM puts a handler in place that does not end waiting for a child; Python's own does.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        compiled.save(tmp_path / "model")
    assert names(tmp_path) == ["child", "slow"]
    child = int((tmp_path / "child").read_text())
    status = Path(f"/proc/{child}/stat")
    assert not status.exists() or status.read_text().split()[2] == "Z"
