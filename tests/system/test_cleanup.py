from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tvm_ext.system.cleanup import NEW_SECONDS, remove_temporaries, temporary_file, temporary_folder


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


HOLD = """
import sys, time
from pathlib import Path
from tvm_ext.system.cleanup import temporary_file, temporary_folder
with temporary_folder(Path(sys.argv[1]), "out") as folder, temporary_file(Path(sys.argv[1]), "page.html") as file:
    (folder / "model.so").write_text("half")
    (folder / "deep").mkdir()
    file.write_text("half")
    print("ready", flush=True)
    time.sleep(1000)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_a_killed_process_left_is_removed_by_the_next_and_nothing_else(tmp_path: Path) -> None:
    foreign = [".config-0123456789ab", ".notes.tvm-ext", "out-0123456789ab.tvm-ext", ".out-0123456789AB.tvm-ext"]
    for name in foreign:
        (tmp_path / name).write_text("not ours")
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        left = [name for name in names(tmp_path) if name not in foreign]
        assert len(left) == 2
        with temporary_folder(tmp_path, "out"):
            assert set(left) < set(names(tmp_path))  # its process lives
        process.kill()
        process.wait()
        assert names(tmp_path) == sorted([*foreign, *left])
        with temporary_file(tmp_path, "another"):
            pass
    assert names(tmp_path) == sorted(foreign)


def test_one_that_is_just_being_made_is_left_alone(tmp_path: Path) -> None:
    made = tmp_path / ".out-0123456789ab.tvm-ext.new"
    made.mkdir()
    with temporary_folder(tmp_path, "out"):
        assert made.is_dir()
    os.utime(made, (0, time.time() - 2 * NEW_SECONDS))
    with temporary_folder(tmp_path, "out"):
        assert not made.exists()


def test_leftovers_that_are_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    link = tmp_path / ".out-0123456789ab.tvm-ext"
    link.symlink_to(tmp_path / "kept")
    with temporary_folder(tmp_path, "out"):
        pass
    assert link.is_symlink()


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
from tvm_ext.system.cleanup import end_children
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
    source = "import time; from tvm_ext.system.cleanup import end_children; start = time.monotonic(); end_children(5.0)"
    subprocess.run([sys.executable, "-c", f"{source}; assert time.monotonic() - start < 4"], check=True)
