"""The parent's handle on a worker: started, asked, frozen, ended; a failure of any kind becomes one sentence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing import Pipe
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tvm_ext.bench.protocol import Answer

WORKER = Path(__file__).with_name("worker.py")
LOG_CHARACTERS = 200


class EngineFailure(Exception):
    """An engine gave an error, crashed, or did not answer in time; its worker is gone. Ends one row, not the run."""


def thread_environment(threads: int) -> dict[str, str]:
    """Environment variables that pin every thread pool of an engine to ``threads`` threads."""
    variables = ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return dict.fromkeys(variables, str(threads))


class WorkerProcess:
    """One worker process.

    It leads its own session, so that Ctrl-C reaches the parent only and :meth:`close` ends whatever it started; the
    kernel kills it when the parent ends for any reason.

    Parameters
    ----------
    engine_file : Path
        File of the engine.
    threads : int
        Threads its pools are pinned to.
    scratch : Path
        Folder for its temporary files, which it may leave behind when it is killed.
    """

    def __init__(self, engine_file: Path, threads: int, scratch: Path) -> None:
        self._connection, theirs = Pipe(duplex=True)
        self._log = tempfile.TemporaryFile()
        self._frozen = False
        environment = os.environ | thread_environment(threads) | {"TMPDIR": str(scratch)}
        arguments = [str(theirs.fileno()), str(os.getpid()), str(engine_file)]
        try:
            # -P: the folder of the script holds modules of ours, which must not hide others of the same name.
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(WORKER), *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError:
            self._connection.close()
            self._log.close()
            raise
        finally:
            theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process is there, running or frozen."""
        return self._process.returncode is None and self._process.poll() is None

    def ask(self, request: Mapping[str, Any], doing: str, timeout: float) -> Answer:
        """Send a request and wait for the answer; the worker is awake before and frozen after.

        Parameters
        ----------
        request : mapping
            ``do`` says what; see :func:`tvm_ext.bench.worker.answer`.
        doing : str
            The same in the user's words, for error messages: "compiling", "running".
        timeout : float
            Seconds to wait.

        Raises
        ------
        EngineFailure
            If the worker answers with an error, ends, or does not answer in time. It is gone afterwards.
        """
        try:
            self._thaw()
            self._connection.send(dict(request))
        except (OSError, ProcessLookupError):
            raise self._ended(doing) from None
        return self.wait(doing, timeout)

    def wait(self, doing: str, timeout: float) -> Answer:
        """Wait for the next answer, as :meth:`ask` does after sending; a new worker sends one by itself."""
        try:
            if not self._connection.poll(timeout):
                self.close()
                raise EngineFailure(
                    f"no answer within {timeout:g} s while {doing}; raise the time limit if it needs longer"
                )
            answer: Answer = self._connection.recv()
        except (EOFError, OSError):
            raise self._ended(doing) from None
        if "error" in answer:
            self.close()
            raise EngineFailure(f"{doing}: {answer['error']}")
        self._freeze()
        return answer

    def close(self) -> None:
        """End the worker and everything it started, at once; calling it again does nothing."""
        if self._process.returncode is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)  # its session, so also compilers it may have started
            except ProcessLookupError:
                pass
            self._process.wait()
        self._connection.close()
        self._log.close()

    def _freeze(self) -> None:
        if not self._frozen and self.alive:
            os.killpg(self.pid, signal.SIGSTOP)
            self._frozen = True

    def _thaw(self) -> None:
        if self._frozen and self.alive:
            os.killpg(self.pid, signal.SIGCONT)
        self._frozen = False

    def _ended(self, doing: str) -> EngineFailure:
        """Say how a worker that is gone came to its end."""
        try:
            code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:  # it closed the pipe and went on
            code = 0
        words = self._last_words()
        self.close()
        if code < 0:
            name = signal.Signals(-code).name
            memory = " (out of memory?)" if name == "SIGKILL" else ""
            return EngineFailure(f"the engine's process crashed with {name}{memory} while {doing}")
        return EngineFailure(f"the engine's process exited with code {code} while {doing}{words}")

    def _last_words(self) -> str:
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 4096))
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return f": {lines[-1][:LOG_CHARACTERS]}" if lines else ""
