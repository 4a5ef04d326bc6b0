from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tvm_ext
from tests.modules import Branch, Dynamic, Mlp, Several, arguments, convolutions
from tvm_ext.artifact import LIBRARY, METADATA, CompiledModel, check_destination, load
from tvm_ext.errors import (
    CompileError,
    InputError,
    MissingPackageError,
    ModelError,
    OutputError,
    TargetError,
    TvmExtError,
)
from tvm_ext.library import find_compiler
from tvm_ext.metadata import file_record


@pytest.fixture(scope="module")
def compiled() -> CompiledModel:
    return tvm_ext.compile(Mlp)


@pytest.fixture(scope="module")
def saved(compiled: CompiledModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact on disk; not to be changed."""
    return compiled.save(tmp_path_factory.mktemp("saved") / "model")


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    """An artifact on disk that a test may damage."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class TestSaveAndLoad:
    @pytest.mark.parametrize("mod", [Mlp, Dynamic, Branch, Several, convolutions(2)])
    def test_a_loaded_model_computes_the_same(self, mod: Any, tmp_path: Path) -> None:
        compiled = tvm_ext.compile(mod)
        values = arguments(mod)
        expected = compiled.run(values)
        loaded = load(compiled.save(tmp_path / "model"))
        assert (loaded.inputs, loaded.outputs) == (compiled.inputs, compiled.outputs)
        results = loaded.run({spec.name: value for spec, value in zip(loaded.inputs, values, strict=True)})
        assert list(results) == [spec.name for spec in loaded.outputs]
        for name, result in results.items():
            np.testing.assert_array_equal(result, expected[name])

    def test_the_folder_holds_the_library_and_its_description(self, saved: Path) -> None:
        assert names(saved) == [METADATA, LIBRARY]
        assert names(saved.parent) == ["model"]
        metadata = json.loads((saved / METADATA).read_text())
        assert metadata["files"] == {LIBRARY: file_record(saved / LIBRARY)}
        assert metadata["files"][LIBRARY]["bytes"] == (saved / LIBRARY).stat().st_size
        assert metadata["versions"]["apache-tvm"]

    def test_the_library_is_one_that_stock_tvm_runs(self, saved: Path) -> None:
        import tvm
        from tvm import relax

        machine = relax.VirtualMachine(tvm.runtime.load_module(str(saved / LIBRARY)), tvm.cpu())
        values = arguments(Mlp)
        result = machine["main"](*(tvm.runtime.tensor(value) for value in values)).numpy()
        np.testing.assert_array_equal(result, load(saved).run(values)["output"])

    def test_modes_follow_the_umask(self, compiled: CompiledModel, tmp_path: Path) -> None:
        before = os.umask(0o027)
        try:
            folder = compiled.save(tmp_path / "model")
        finally:
            os.umask(before)
        assert folder.stat().st_mode & 0o777 == 0o750
        assert (folder / METADATA).stat().st_mode & 0o777 == 0o640

    def test_a_loaded_model_can_be_saved_again(self, saved: Path, tmp_path: Path) -> None:
        again = load(saved).save(tmp_path / "again")
        assert (again / LIBRARY).read_bytes() == (saved / LIBRARY).read_bytes()
        values = arguments(Mlp)
        np.testing.assert_array_equal(load(again).run(values)["output"], load(saved).run(values)["output"])

    def test_missing_parents_are_made(self, compiled: CompiledModel, tmp_path: Path) -> None:
        assert names(compiled.save(tmp_path / "a" / "b" / "model")) == [METADATA, LIBRARY]

    def test_odd_names(self, compiled: CompiledModel, tmp_path: Path) -> None:
        for name in ("with space", "qu\"o'te\\", "日本語" * 20, "-o", "x" * 200):
            assert load(compiled.save(tmp_path / name)).outputs == compiled.outputs


class TestDestination:
    def test_an_empty_folder_is_used(self, compiled: CompiledModel, tmp_path: Path) -> None:
        (tmp_path / "model").mkdir()
        assert names(compiled.save(tmp_path / "model")) == [METADATA, LIBRARY]
        assert names(tmp_path) == ["model"]

    def test_an_artifact_is_only_replaced_by_force(self, compiled: CompiledModel, copied: Path) -> None:
        (copied / METADATA).write_text("old")
        with pytest.raises(OutputError, match=r"model exists already; give another folder, or --force"):
            compiled.save(copied)
        assert (copied / METADATA).read_text() == "old"
        compiled.save(copied, force=True)
        assert load(copied).outputs == compiled.outputs
        assert names(copied.parent) == ["model"]

    def test_a_folder_with_anything_else_is_never_replaced(self, compiled: CompiledModel, copied: Path) -> None:
        (copied / "thesis.tex").touch()
        for folder in (copied, copied.parent):
            with pytest.raises(OutputError, match=r"holds more than an artifact \((thesis\.tex|model)\)"):
                compiled.save(folder, force=True)
        assert names(copied) == [METADATA, LIBRARY, "thesis.tex"]

    def test_files_and_links_are_not_replaced(self, compiled: CompiledModel, copied: Path, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        (tmp_path / "link").symlink_to(copied)
        (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
        for name in ("file", "link", "dangling"):
            with pytest.raises(OutputError, match=f"{name} exists and is not a folder; give another name"):
                compiled.save(tmp_path / name, force=True)
        with pytest.raises(OutputError, match=r"cannot create .*file/model: .*file is not a folder"):
            compiled.save(tmp_path / "file" / "model")
        assert (tmp_path / "link").is_symlink()

    def test_where_no_folder_can_be_made(self, compiled: CompiledModel, tmp_path: Path) -> None:
        with pytest.raises(OutputError, match="cannot create /proc/model: No such file or directory; give another"):
            compiled.save("/proc/model")
        with pytest.raises(OutputError, match=r"cannot create .*: File name too long"):
            compiled.save(tmp_path / ("x" * 300))
        for folder in (".", "/", ".."):
            with pytest.raises(OutputError, match="cannot be replaced; give a folder inside it, such as"):
                compiled.save(folder, force=True)

    def test_a_read_only_disk(self, compiled: CompiledModel, mount: Callable[..., Path]) -> None:
        disk = mount("size=1m")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(OutputError, match="Read-only file system; give another folder"):
            check_destination(disk / "model", force=False)
        with pytest.raises(OutputError, match="cannot be replaced; give a folder inside it"):
            check_destination(disk, force=False)

    def test_the_old_artifact_stays_when_the_new_one_cannot_be_put_there(
        self, compiled: CompiledModel, copied: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = (copied / METADATA).read_bytes()
        rename = Path.rename

        def fail_for_new(self: Path, target: Path) -> Path:
            if Path(target) == copied and not self.name.endswith("-old"):
                raise OSError(5, "Input/output error")
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", fail_for_new)
        with pytest.raises(OutputError, match=r"cannot write .*: Input/output error"):
            compiled.save(copied, force=True)
        assert (copied / METADATA).read_bytes() == before
        assert names(copied.parent) == ["model"]


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
        with pytest.raises(MissingPackageError, match=r"looked for hexagon-clang\+\+"):
            find_compiler("hexagon")
        cross = tmp_path / "s390x-linux-gnu-g++"
        cross.touch()
        cross.chmod(0o755)
        assert find_compiler("s390x-linux-gnu") == str(cross)

    def test_c_code(self, tmp_path: Path) -> None:
        compiled = tvm_ext.compile(Mlp, "c")
        values = arguments(Mlp)
        result = load(compiled.save(tmp_path / "model")).run(values)["output"]
        np.testing.assert_allclose(result, tvm_ext.compile(Mlp).run(values)["output"], rtol=1e-5)


class TestDamage:
    def test_what_is_no_artifact(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"nothing is not a folder; `tvm-ext compile MODEL -o FOLDER` makes an"):
            load(tmp_path / "nothing")
        with pytest.raises(ModelError, match=r"is not an artifact \(it has no metadata.json\)"):
            load(tmp_path)
        with pytest.raises(ModelError, match="is not a folder"):
            load(tmp_path / ("x" * 300))

    def test_missing_library(self, copied: Path) -> None:
        (copied / LIBRARY).unlink()
        with pytest.raises(ModelError, match=r"model.so cannot be read: No such file or directory; compile the"):
            load(copied)

    @pytest.mark.parametrize("where", [0, 17, 1000, -1])
    def test_one_flipped_bit_in_the_library(self, copied: Path, where: int) -> None:
        content = bytearray((copied / LIBRARY).read_bytes())
        content[where] ^= 1
        (copied / LIBRARY).write_bytes(content)
        with pytest.raises(ModelError, match=r"model.so is damaged: its SHA-256 is \w+ where metadata.json says"):
            load(copied)

    def test_truncated_library(self, copied: Path) -> None:
        content = (copied / LIBRARY).read_bytes()
        (copied / LIBRARY).write_bytes(content[:1000])
        message = f"its size in bytes is 1000 where metadata.json says {len(content)}"
        with pytest.raises(ModelError, match=message):
            load(copied)

    def test_a_library_that_is_none(self, copied: Path) -> None:
        (copied / LIBRARY).write_text("not a library")
        change(copied, lambda data: data["files"].update({LIBRARY: file_record(copied / LIBRARY)}))
        with pytest.raises(TargetError, match=r"model.so cannot be loaded on this machine: .*(invalid ELF|too short)"):
            load(copied)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "is damaged, it is not JSON"),
            (b"{", "is damaged, it is not JSON"),
            (b"\xff\xfe", "is damaged, it is not JSON"),
            (b"[" * 100_000, "is damaged, it is not JSON"),
            (b"[]", "is damaged, it holds no JSON object"),
            (b"{}", "format None is not the one this version reads"),
            (b'{"format": 2}', "format 2 is not the one this version reads"),
            (b'{"format": true}', "format True is not"),
            (b'{"format": 1}', "is damaged, field inputs is missing"),
        ],
    )
    def test_metadata_that_is_none(self, copied: Path, content: bytes, message: str) -> None:
        (copied / METADATA).write_bytes(content)
        with pytest.raises(ModelError, match=message):
            load(copied)

    @pytest.mark.parametrize(
        ("key", "value", "message"),
        [
            ("inputs", {}, "field inputs is dict where list is needed"),
            ("inputs", [3], r"field inputs\[0\] is not an object"),
            ("outputs", [{}], r"field outputs\[0\].name is missing"),
            ("inputs", [{"name": "x", "shape": [1.5], "dtype": "float32"}], "holds 1.5, which is no dimension"),
            ("inputs", [{"name": "x", "shape": [-1], "dtype": "float32"}], "holds -1, which is no dimension"),
            ("inputs", [{"name": "x", "shape": [2**64], "dtype": "float32"}], "which is no dimension"),
            ("inputs", [{"name": "x", "shape": [True], "dtype": "float32"}], "holds True"),
            ("inputs", [{"name": "x", "shape": [], "dtype": "flout32"}], "dtype is 'flout32', which is no type"),
            ("inputs", [{"name": "x", "shape": [], "dtype": "int8"}] * 2, "inputs names a tensor twice"),
            ("device", "toaster", "device is 'toaster', which TVM does not know"),
            ("target", "llvm", "field target is str where dict is needed"),
            ("target", {}, "field target.kind is missing"),
            ("files", {}, "field files.model.so is missing"),
            ("files", {LIBRARY: 3}, "field files.model.so is not an object"),
            ("files", {LIBRARY: {"bytes": "3"}}, "field files.model.so.bytes is str where int is needed"),
        ],
    )
    def test_one_field(self, copied: Path, key: str, value: object, message: str) -> None:
        change(copied, lambda data: data.update({key: value}))
        with pytest.raises(ModelError, match=message):
            load(copied)

    def test_a_device_that_is_not_here(self, copied: Path) -> None:
        change(copied, lambda data: data.update({"device": "vpi", "target": {"kind": "vpi"}}))
        with pytest.raises(TargetError, match="compiled for vpi, and this machine has no vpi device; compile it for"):
            load(copied).run(arguments(Mlp))

    def test_outputs_that_the_model_does_not_have(self, copied: Path) -> None:
        change(copied, lambda data: data.update({"outputs": []}))
        with pytest.raises(ModelError, match="returns 1 tensors where its metadata lists 0 outputs"):
            load(copied).run(arguments(Mlp))

    def test_inputs_that_the_model_does_not_have(self, copied: Path) -> None:
        change(copied, lambda data: data["inputs"][0].update({"shape": [4, 9]}))
        values = arguments(Mlp)
        with pytest.raises(CompileError, match="the compiled model failed while running: "):
            load(copied).run([np.zeros((4, 9), "float32"), *values[1:]])


def change(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads((folder / METADATA).read_text())
    edit(data)
    (folder / METADATA).write_text(json.dumps(data))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to everything inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(st.data())
def test_mutated_metadata_gives_a_model_that_runs_or_an_error(saved: Path, tmp_path: Path, data: st.DataObject) -> None:
    metadata = json.loads((saved / METADATA).read_text())
    for _ in range(data.draw(st.integers(1, 3))):
        *path, key = data.draw(st.sampled_from(places(metadata)[1:] or [(None,)]))
        if key is None:
            break
        holder = metadata
        for step in path:
            holder = holder[step]
        if data.draw(st.booleans()):
            del holder[key]
        else:
            holder[key] = data.draw(JSON)
    if not (tmp_path / LIBRARY).exists():
        os.link(saved / LIBRARY, tmp_path / LIBRARY)
    (tmp_path / METADATA).write_text(json.dumps(metadata))
    with contextlib.suppress(TvmExtError):
        assert load(tmp_path).run(arguments(Mlp))


def test_errors_while_running_are_of_our_classes(compiled: CompiledModel) -> None:
    values = arguments(Mlp)
    with pytest.raises(InputError, match="2 inputs given where 3 are needed"):
        compiled.run(values[:2])


def test_an_interrupt_while_linking_ends_the_compiler_and_leaves_nothing(
    compiled: CompiledModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "slow"
    script.write_text(f"#!/bin/sh\nsleep 1000 & echo $! > {tmp_path}/child; kill -INT $PPID; wait\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    with pytest.raises(KeyboardInterrupt):
        compiled.save(tmp_path / "model")
    assert names(tmp_path) == ["child", "slow"]
    child = int((tmp_path / "child").read_text())
    status = Path(f"/proc/{child}/stat")
    assert not status.exists() or status.read_text().split()[2] == "Z"
