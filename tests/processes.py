"""Runs a few lines of Python in a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap


def python(source: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``source``; ``options`` go to the interpreter, ``environment`` is added to the variables there are."""
    return subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
        check=False,
    )


def output_of(source: str, *options: str, **environment: str) -> str:
    """What ``source`` printed; fails when it did not end well."""
    done = python(source, *options, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
