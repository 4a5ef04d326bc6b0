from __future__ import annotations

import copy
import json
import os
import pickle
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_ext
from tests.modules import Branch, Dynamic, Mlp, Several, arguments, convolutions
from tvm_ext.artifact import destination
from tvm_ext.artifact.compiled_model import LIBRARY, METADATA, CompiledModel, load
from tvm_ext.artifact.destination import check_destination
from tvm_ext.artifact.metadata import file_record
from tvm_ext.errors import InputError, ModelError, OutputError


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
        machine = relax.VirtualMachine(tvm.runtime.load_module(str(saved / LIBRARY)), tvm.cpu())
        values = arguments(Mlp)
        result = machine["main"](*(tvm.runtime.tensor(value) for value in values)).numpy()
        np.testing.assert_array_equal(result, load(saved).run(values)["output"])

    def test_a_folder_that_is_saved_to_again_gives_the_new_model(self, tmp_path: Path) -> None:
        """The dynamic loader knows a library by the name that it was loaded by."""
        first, second = (tvm_ext.compile(convolutions(layers)) for layers in (1, 2))
        values = arguments(convolutions(1))
        results = []
        for compiled in (first, second, first):
            compiled.save(tmp_path / "model", force=True)
            loaded = load(tmp_path / "model")
            results.append((loaded, next(iter(loaded.run(values).values()))))
            np.testing.assert_array_equal(results[-1][1], next(iter(compiled.run(values).values())))
        # Those that were loaded before stay what they are.
        for loaded, result in results:
            np.testing.assert_array_equal(next(iter(loaded.run(values).values())), result)

    def test_modes_follow_the_umask(self, compiled: CompiledModel, tmp_path: Path) -> None:
        before = os.umask(0o027)
        try:
            folder = compiled.save(tmp_path / "model")
        finally:
            os.umask(before)
        assert folder.stat().st_mode & 0o777 == 0o750
        assert (folder / METADATA).stat().st_mode & 0o777 == 0o640

    def test_a_loaded_model_whose_folder_is_gone_cannot_be_saved(self, saved: Path, tmp_path: Path) -> None:
        loaded = load(shutil.copytree(saved, tmp_path / "first"))
        shutil.rmtree(tmp_path / "first")
        with pytest.raises(
            OutputError, match=r"cannot copy the model: .*first.*, which it was loaded from, is not there"
        ):
            loaded.save(tmp_path / "second")
        assert names(tmp_path) == []

    def test_names_that_the_locale_lacks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(destination.sys, "getfilesystemencoding", lambda: "ascii")
        with pytest.raises(ModelError, match="characters that the locale's encoding, ascii, lacks; set PYTHONUTF8=1"):
            load("/model \udcc3\udca4")

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

    @pytest.mark.parametrize(("force", "file"), [(False, METADATA), (True, "thesis.tex")])
    def test_what_appears_meanwhile_is_not_replaced(
        self, compiled: CompiledModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool, file: str
    ) -> None:
        folder, write = tmp_path / "model", CompiledModel._write

        def write_slowly(self: CompiledModel, partial: Path) -> None:
            write(self, partial)
            folder.mkdir()
            (folder / file).write_text("another's")

        monkeypatch.setattr(CompiledModel, "_write", write_slowly)
        with pytest.raises(OutputError, match=r"model (exists already|holds more than an artifact)"):
            compiled.save(folder, force)
        assert (folder / file).read_text() == "another's"
        assert names(tmp_path) == ["model"]

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
        for name, what in (("file", "exists and is not a folder"), ("link", "is a link"), ("dangling", "is a link")):
            with pytest.raises(OutputError, match=f"{name} {what}.* another name"):
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
            if Path(target) == copied and not copied.exists() and not self.name.endswith("-old"):
                raise OSError(5, "Input/output error")
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", fail_for_new)
        monkeypatch.setattr(destination, "exchange", lambda one, other: False)
        with pytest.raises(OutputError, match=r"cannot write .*: Input/output error"):
            compiled.save(copied, force=True)
        assert (copied / METADATA).read_bytes() == before
        assert names(copied.parent) == ["model"]

    @pytest.mark.parametrize("in_one_step", [True, False])
    def test_replaced_without_a_moment_in_which_both_could_be_lost(
        self, compiled: CompiledModel, copied: Path, monkeypatch: pytest.MonkeyPatch, in_one_step: bool
    ) -> None:
        (copied / METADATA).write_text("old")
        rename, seen = Path.rename, []

        def watched(self: Path, target: Path) -> Path:
            result = rename(self, target)
            safe = [path for path in copied.parent.iterdir() if path == copied or path.name.endswith("-old")]
            seen.append([(path / METADATA).exists() for path in safe])
            return result

        monkeypatch.setattr(Path, "rename", watched)
        if not in_one_step:
            monkeypatch.setattr(destination, "exchange", lambda one, other: False)
        compiled.save(copied, force=True)
        assert all(seen)
        assert all(map(any, seen))
        assert load(copied).outputs == compiled.outputs
        assert names(copied.parent) == ["model"]


def test_errors_while_running_are_of_our_classes(compiled: CompiledModel) -> None:
    values = arguments(Mlp)
    with pytest.raises(InputError, match="2 inputs given where 3 are needed"):
        compiled.run(values[:2])


@pytest.mark.parametrize("name", [None, 5, b"bytes", "a\0b", os.fsdecode(b"bad\xff")])
def test_what_is_no_path_is_refused(compiled: CompiledModel, name: Any, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"is not the path|null character|not valid UTF-8"):
        load(name)
    with pytest.raises(OutputError, match=r"is not the path|null character|not valid UTF-8"):
        compiled.save(name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_are_refused(compiled: CompiledModel, duplicate: Callable[[Any], Any]) -> None:
    with pytest.raises(OutputError, match=r"neither pickled nor copied; use save\(folder\)"):
        duplicate(compiled)
