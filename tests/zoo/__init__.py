"""The model zoo of the tests and benchmarks.

``ZOO`` maps names to entries, ``get`` finds one, ``need`` finds one or skips the running test with the
reason. Importing it loads neither torch nor TVM; a model is built when first asked for and then kept on disk.
"""

from __future__ import annotations

from tests.zoo import light, tiny, torch_nets, trained
from tests.zoo.entry import Entry

__all__ = ["ZOO", "Entry", "get", "need"]

ZOO: dict[str, Entry] = {
    entry.name: entry for entry in (*tiny.ENTRIES, *light.ENTRIES, *trained.ENTRIES, *torch_nets.ENTRIES)
}


def get(name: str) -> Entry:
    """The entry of that name; a KeyError lists the names there are."""
    if name not in ZOO:
        raise KeyError(f"no model '{name}' in the zoo; there are: {', '.join(ZOO)}")
    return ZOO[name]


def need(name: str) -> Entry:
    """The entry of that name, or skip the running test with the reason why it cannot be had here."""
    import pytest

    entry = get(name)
    if reason := entry.missing():
        pytest.skip(reason)
    return entry
