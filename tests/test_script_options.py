"""Every program under ``scripts`` says what it takes."""

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAMS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "scripts").rglob("*.py")
    if "\ndef main(" in (text := path.read_text(encoding="utf-8")) and "ArgumentParser(" in text
)


def test_there_are_programs():
    assert "scripts.bench_models" in PROGRAMS


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_names_every_option(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    module = importlib.import_module(name)
    with pytest.raises(SystemExit) as stopped:
        module.main()
    assert stopped.value.code == 0
    assert "usage:" in capsys.readouterr().out
