from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tvm_ext.cleanup import remove_temporaries, temporary_file, temporary_folder


def test_folder_is_gone_afterwards_whatever_is_in_it(tmp_path: Path) -> None:
    with temporary_folder(tmp_path, "name") as folder:
        (folder / "deep" / "er").mkdir(parents=True)
        (folder / "deep" / "file").write_text("x")
        assert folder.parent == tmp_path
        assert folder.name.startswith(".name-")
    assert list(tmp_path.iterdir()) == []


def test_renamed_folders_and_files_stay(tmp_path: Path) -> None:
    with temporary_folder(tmp_path, "a") as folder, temporary_file(tmp_path, "b") as file:
        file.write_text("x")
        folder.rename(tmp_path / "folder")
        file.rename(tmp_path / "file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
def test_gone_after_errors(tmp_path: Path, error: type[BaseException]) -> None:
    def fail() -> None:
        with temporary_folder(tmp_path, "a"), temporary_file(tmp_path, "b") as file:
            file.write_text("x")
            raise error

    with pytest.raises(error):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_all_can_be_removed_at_once(tmp_path: Path) -> None:
    with temporary_folder(tmp_path, "a") as folder, temporary_file(tmp_path, "b") as file:
        file.write_text("x")
        (folder / "c").touch()
        remove_temporaries()
        assert list(tmp_path.iterdir()) == []
        folder.mkdir()  # made anew by somebody else: still ours to remove
    assert list(tmp_path.iterdir()) == []


def test_links_in_a_temporary_folder_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    with temporary_folder(tmp_path, "a") as folder:
        (folder / "link").symlink_to(tmp_path / "kept")
    assert (tmp_path / "kept" / "file").exists()


def test_two_of_the_same_name_differ(tmp_path: Path) -> None:
    with temporary_folder(tmp_path, "a") as first, temporary_folder(tmp_path, "a") as second:
        assert first != second


TREE = """
import signal, subprocess, sys, time
if sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "1000"])
print(child.pid, flush=True)
time.sleep(1000)
"""


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("manner", ["polite", "stubborn"])
def test_children_and_their_children_end(manner: str) -> None:
    # In a process of its own: the tests may have other children, which are not to be ended.
    source = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {TREE!r}, {manner!r}], stdout=subprocess.PIPE, text=True)
grandchild = int(child.stdout.readline())
from tvm_ext.cleanup import end_children
end_children(0.3)
print(child.pid, grandchild, child.wait())
"""
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True)
    child, grandchild, code = map(int, done.stdout.split())
    assert code == -(signal.SIGKILL if manner == "stubborn" else signal.SIGTERM)
    assert not is_alive(child)
    assert not is_alive(grandchild)
    assert time.monotonic() - start < 30


def test_nothing_to_end() -> None:
    source = "import time; start = time.monotonic(); from tvm_ext.cleanup import end_children; end_children(5.0)"
    subprocess.run([sys.executable, "-c", f"{source}; assert time.monotonic() - start < 4"], check=True)
