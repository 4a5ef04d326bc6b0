"""Tests of the package; what is set up here holds before any of them is imported."""

import inspect
from importlib import _bootstrap, _bootstrap_external

# TVMScript takes `inspect.stack()` at each decorator, and that looks for the module of a frame without a file among all
# modules, anew for each such frame: a minute of processor time in all. These are the frames, and where they are from.
# The dictionary is the cache of `inspect.getmodule`, which says the same of such a frame without the search: no source.
inspect.modulesbyfile.update(
    {
        "<frozen importlib._bootstrap>": _bootstrap.__name__,
        "<frozen importlib._bootstrap_external>": _bootstrap_external.__name__,
        "<frozen runpy>": "runpy",
        "<string>": "__main__",
    }
)
