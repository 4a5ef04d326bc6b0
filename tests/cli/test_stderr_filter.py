from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

WARNING = "[12:34:56] /project/src/relax/ir/block_builder.cc:67: Warning: BlockBuilder destroyed with remaining blocks!"
ERROR = "[12:34:56] /project/src/target/llvm/llvm_instance.cc:218: Error: not valid"

PREAMBLE = """
import os, signal, sys
from tvm_ext.cli.stderr_filter import StderrFilter
stderr_filter = StderrFilter()
def say(text):
    os.write(2, text.encode())
"""


def run(source: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PREAMBLE + textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_warnings_are_left_out_and_all_else_is_passed_on() -> None:
    done = run(f"""
        say({WARNING!r} + "\\n" + {ERROR!r} + "\\nLLVM ERROR: x\\n" + {WARNING!r} + "\\nno end of line")
        stderr_filter.close()
    """)
    assert (done.returncode, done.stderr) == (0, f"{ERROR}\nLLVM ERROR: x\nno end of line")


def test_what_python_writes_goes_past_it() -> None:
    done = run(f"print({WARNING!r}, '\\udc80é', file=sys.stderr); stderr_filter.close()")
    assert done.stderr == f"{WARNING} \\udc80é\n"


def test_stderr_is_back_after_closing() -> None:
    done = run(f"""
        stderr_filter.close()
        say({WARNING!r})
        print(os.path.sameopenfile(2, stderr_filter.stderr))
    """)
    assert (done.stdout, done.stderr) == ("True\n", WARNING)


def test_nothing_is_passed_on_once_it_is_mute() -> None:
    done = run("say('before\\n'); stderr_filter.mute(); say('after\\n'); stderr_filter.close()")
    assert done.stderr == "before\n"


@pytest.mark.parametrize("end", ["os.abort()", "os.kill(os.getpid(), signal.SIGKILL)", "os._exit(1)"])
def test_a_crash_is_told_with_the_last_words(end: str) -> None:
    done = run(f"say('LLVM ERROR: out of registers\\n'); {end}")
    first, second = done.stderr.splitlines()
    assert first == "LLVM ERROR: out of registers"
    assert second.startswith(
        "tvm-ext: error: the process ended without notice: it crashed in native code, or was killed"
    )
    assert done.returncode != 0


def test_no_process_is_left() -> None:
    done = run("""
        stderr_filter.close()
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            print("no children")
    """)
    assert done.stdout == "no children\n"


def test_an_interrupt_of_all_processes_does_not_end_it() -> None:
    done = run("""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.setpgid(0, 0)
        os.kill(stderr_filter._process, signal.SIGINT)
        os.kill(stderr_filter._process, signal.SIGHUP)
        say("still there\\n")
        stderr_filter.close()
    """)
    assert (done.returncode, done.stderr) == (0, "still there\n")
