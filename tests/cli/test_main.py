from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.commands import Commands, Result, real_command
from tvm_ext import __version__, errors
from tvm_ext.cli import interrupt, main
from tvm_ext.cli.group import COMMANDS


def documented_codes() -> dict[int, str]:
    rows = re.findall(r"^(\d+) +(\S.*)$", main.__doc__ or "", flags=re.MULTILINE)
    return {int(code): meaning for code, meaning in rows}


def test_every_exit_code_is_documented() -> None:
    kinds = [
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.TvmExtError)
    ]
    used = {kind.exit_code for kind in kinds}
    used |= {0, 1, 2} | {128 + number for number in interrupt.SIGNALS}
    assert set(documented_codes()) == used


def test_a_current_folder_that_is_gone_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    source = "import os; os.rmdir(os.getcwd()); from tvm_ext.cli.main import main; main(['run', '/nowhere'])"
    done = subprocess.run([sys.executable, "-c", source], cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (errors.OutputError.exit_code, "")
    assert done.stderr.startswith("tvm-ext: error: the current folder cannot be read (No such file or directory)")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(commands: Commands, arguments: list[str]) -> None:
    result = commands(*arguments)
    assert (result.code, result.stderr) == (0, "")
    for name, summary in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(summary)}$", result.stdout, flags=re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(commands: Commands, command: str) -> None:
    result = commands(command, "--help")
    assert (result.code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"Usage: tvm-ext {command} ")


def test_version(commands: Commands) -> None:
    assert commands("--version") == Result(0, f"tvm-ext {__version__}\n", "")


def test_the_installed_script_answers_without_importing_tvm() -> None:
    script = Path(sys.executable).with_name("tvm-ext")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"tvm-ext {__version__}\n", "")
    command = [sys.executable, "-X", "importtime", script, "--version"]  # which lists imports on stderr
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "tvm_ext.cli.main" in imported
    assert not {name for name in imported if name.partition(".")[0] in ("tvm", "tvm_ffi", "numpy", "torch")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "No such command 'nope'; see `tvm-ext --help`"),
        (["complie"], "No such command 'complie', did you mean 'compile'?; see"),
        (["--nope"], "No such option"),
        (["compile"], "Missing argument 'MODEL'; see `tvm-ext compile --help`"),
        (["compile", "x.onnx"], "Missing option '-o' / '--output'"),
        (["compile", "x.onnx", "-o", "x", "--nope"], "No such option"),
        (["compile", "x.onnx", "-o"], "Option '-o' requires an argument"),
        (["compile", "x.onnx", "y.onnx", "-o", "x"], "Got unexpected extra argument (y.onnx)"),
        (["compile", "x.onnx", "-o", "x", "--input-shape", "x"], "'x' is not of the form NAME:1,3,224,224"),
        (["compile", "x.onnx", "-o", "x", "--input-shape", "x:1,-3"], "with whole numbers from 0 on"),
        (["compile", "x.onnx", "-o", "x", "--input-shape", "x:1", "--input-shape", "x:2"], "input 'x' is given twice"),
        (
            ["compile", "x.onnx", "-o", "x", "--fuse", "mapping"],
            "'stock', 'mapping-type', did you mean 'mapping-type'?; see",
        ),
        (["compile", "x.onnx", "-o", "x", "--fuse", "nope"], "'stock', 'mapping-type'; see"),
        (["compile", "x.onnx", "-o", "x", "--disable", "fuse,nope"], "unknown phase 'nope', candidates are"),
        (["run", "x", "--seed", "one"], "Invalid value for '--seed'"),
        (["run", "x", "--seed", "-1"], "Invalid value for '--seed': -1 is not in the range x>=0"),
        (["run", "x", "--tolerance", "-1"], "Invalid value for '--tolerance'"),
        (["run", "x", "--tolerance", "nan"], "Invalid value for '--tolerance'"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    commands: Commands, arguments: list[str], message: str, tmp_path: Path
) -> None:
    commands(*arguments, cwd=tmp_path).error(2, message)
    assert list(tmp_path.iterdir()) == []


def test_errors_hold_no_control_characters(commands: Commands) -> None:
    line = commands("run", "a\nb\x1b[31m\u202e").error(3)
    assert "a b\\x1b[31m\\u202e is not a folder" in line


def test_stdout_that_is_full(commands: Commands, artifact: Path) -> None:
    commands("run", artifact, "--json", stdout="/dev/full").error(7, "cannot write the output: No space left on device")
    real_command("--help", stdout="/dev/full").error(7, "cannot write the output: No space left on device")


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "tvm_ext", "--help"], stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", ["1", "2"])
def test_closed_streams(closed: str, mlp_path: Path, tmp_path: Path) -> None:
    for arguments, code in (("--version", 0), ("nope", 2), (f"compile {mlp_path} -o {tmp_path}/out", 0)):
        command = f"{sys.executable} -m tvm_ext {arguments} {closed}>&-"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("Check failed: std::bad_alloc"), OSError(errno.ENOMEM, "Cannot allocate")]
)
def test_too_little_memory_is_no_fault_of_ours(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(folder: Path) -> None:
        raise error

    monkeypatch.setattr("tvm_ext.artifact.compiled_model.load", fail)
    monkeypatch.delenv("TVM_EXT_TRACEBACK", raising=False)
    assert main.run(["run", "x"]) == 9
    assert re.fullmatch(r"tvm-ext: error: there is not enough memory: .*\n", capsys.readouterr().err)


def test_a_user_without_a_home_is_told_to_set_one() -> None:
    """As in containers that run as a number; only a process without HOME and without a name shows it."""
    command = ["unshare", "--user", "--map-user=12345", "env", "-u", "HOME", "-u", "XDG_CACHE_HOME"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces here")
    command += [sys.executable, "-m", "tvm_ext", "run", "x"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        7,
        "tvm-ext: error: this user has no home folder, and TVM keeps a cache there: set the environment variable HOME "
        "to a folder\n",
    )


def test_an_error_of_ours_is_one_line_that_says_where(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(folder: Path) -> None:
        raise RuntimeError("a\nb")

    monkeypatch.setattr("tvm_ext.artifact.compiled_model.load", fail)
    monkeypatch.delenv("TVM_EXT_TRACEBACK", raising=False)
    assert main.run(["run", "x"]) == 1
    line = capsys.readouterr().err
    pattern = r"unexpected RuntimeError at test_main.py:\d+: a b \(set TVM_EXT_TRACEBACK=1 for the traceback\)\n"
    assert re.fullmatch(f"tvm-ext: error: {pattern}", line)
    monkeypatch.setenv("TVM_EXT_TRACEBACK", "1")
    assert main.run(["run", "x"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_traceback_on_request(commands: Commands) -> None:
    result = commands("run", "/nothing", environment={"TVM_EXT_TRACEBACK": "1"})
    assert result.code == 3
    assert "Traceback (most recent call last)" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("tvm-ext: error: /nothing is not a folder")


def test_warnings_of_the_package_are_one_line_each_and_obey_pythons_options(tmp_path: Path) -> None:
    code = """
        import sys, warnings
        from tvm_ext.cli import main

        def command(arguments):
            warnings.warn("for developers")
            for _ in range(2):
                errors.warn("no rule takes \\n kernel 'x'")
            print("done")
            return 0

        from tvm_ext import errors
        main.run = command
        main.main()
    """
    script = tmp_path / "command.py"
    script.write_text(textwrap.dedent(code))

    def stderr(*options: str, **environment: str) -> str:
        command = [sys.executable, *options, str(script)]
        result = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
        return result.stderr

    line = "tvm-ext: warning: no rule takes kernel 'x'\n"
    assert stderr() == line
    assert stderr("-W", "ignore") == stderr(PYTHONWARNINGS="ignore") == ""
    shown = stderr("-W", "default")
    assert line in shown
    assert "for developers" in shown
    shown = stderr("-W", "ignore:no rule")
    assert "for developers" in shown
    assert "no rule" not in shown
