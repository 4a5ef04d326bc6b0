"""Which dimensions of an ONNX model's inputs stay open, and the names that they have from then on."""

from __future__ import annotations

import difflib
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence

from tvm_ext.conditions import computed, names_of
from tvm_ext.dynamic import ALL, OpenDimension
from tvm_ext.errors import InputError
from tvm_ext.graph.symbolic import symbol

_LONGEST_NAME = 100
"""Characters of a dimension's name that are kept: terms of several such names have a limit of their own."""


class OpenInputs:
    """Which dimensions of the inputs stay open, and under which names.

    Parameters
    ----------
    shapes : mapping from input name to dimensions
        With the numbers that were given in the places of names.
    dynamic : mapping from name to OpenDimension
    source : str
        Begins the error messages.

    Raises
    ------
    InputError
        If a dimension that is to stay open is none of the model's, or fixed.
    """

    def __init__(
        self,
        shapes: Mapping[str, list[int | str | None] | None],
        dynamic: Mapping[str, OpenDimension],
        source: str,
    ) -> None:
        self._source = source
        self._asked = dynamic
        self.notes: list[str] = []
        self._names = {dim for dims in shapes.values() for dim in dims or () if isinstance(dim, str)}
        self._places: dict[tuple[str, int], OpenDimension] = {}
        self._written: dict[str, str] = {}  # dimension -> the place that it was asked for by
        for name, asked in dynamic.items():
            if name in self._names or name == ALL:
                continue
            place = self._place(name, shapes)
            if place is None:
                listed = sorted(self._names) + [
                    f"{input_name}:{axis}"
                    for input_name, dims in shapes.items()
                    for axis, dim in enumerate(dims or ())
                    if dim is None
                ]
                near = difflib.get_close_matches(name, listed, n=1)
                hint = f", did you mean {near[0]!r}? Its" if near else "; its"
                raise InputError(
                    f"{source}: the model has no open dimension {name!r}{hint} open dimensions are "
                    f"{', '.join(listed) or 'none'}, and an axis of an input is INPUT:AXIS"
                )
            self._places[place] = asked

    def _place(self, name: str, shapes: Mapping[str, list[int | str | None] | None]) -> tuple[str, int] | None:
        """Find the axis that ``INPUT:AXIS`` stands for."""
        input_name, _, axis = name.rpartition(":")
        if input_name not in shapes or not re.fullmatch("[0-9]+", axis):
            return None
        dims = shapes[input_name]
        if dims is None or int(axis) >= len(dims):
            rank = "an unknown number of" if dims is None else str(len(dims))
            raise InputError(
                f"{self._source}: dimension {name!r} is to stay open, and input {input_name!r} has {rank} dimensions; "
                f"name them all with --input-shape {input_name}:n,..."
            )
        dim = dims[int(axis)]
        if isinstance(dim, int):
            raise InputError(
                f"{self._source}: dimension {name!r} is to stay open, and the model fixes it to {dim}: "
                f"{spelled(dims)}; export the model with this dimension open"
            )
        if isinstance(dim, str) and dim in self._asked:
            other = self._written.get(dim, dim)
            raise InputError(
                f"{self._source}: dimensions {name!r} and {other!r} are the same one; leave one of them out"
            )
        if isinstance(dim, str):  # the same dimension of all inputs
            self._asked = {**self._asked, dim: self._asked[name]}
            self._written[dim] = name
        return input_name, int(axis)

    def stays(self, name: str, axis: int, dim: int | str | None) -> bool:
        """Whether a dimension, known by its name or its place, stays open."""
        return self._found(name, axis, dim) is not None

    def _found(self, name: str, axis: int, dim: int | str | None) -> OpenDimension | None:
        if isinstance(dim, int):
            return None
        if isinstance(dim, str) and dim in self._asked:
            return self._asked[dim]
        if isinstance(dim, str) and self._is_term(dim):
            return None
        return self._places.get((name, axis)) or self._asked.get(ALL)

    def _is_term(self, dim: str) -> bool:
        """Whether a dimension is computed from others, as ``past + seq`` is."""
        try:
            names = names_of(dim)
        except ValueError:
            return False
        return not dim.isidentifier() and bool(names) and names <= self._names

    def named(
        self, shapes: Mapping[str, list[int | str | None] | None]
    ) -> tuple[dict[str, list[int | str | None] | None], dict[str, tuple[tuple[int, int | None] | None, ...]]]:
        """Name what stays open; give the shapes and their ranges.

        Raises
        ------
        InputError
            If a dimension is left without a value that is not to stay open.
        """
        identifiers: dict[str | tuple[str, int], str] = {}
        limits: dict[str, tuple[int, int | None]] = {}
        result: dict[str, list[int | str | None] | None] = {}
        for name, dims in shapes.items():
            if dims is None:
                raise InputError(request(shapes, self._source))
            result[name] = list(dims)
            for axis, dim in enumerate(dims):
                asked = self._found(name, axis, dim)
                if asked is None:
                    continue
                key = dim if isinstance(dim, str) else (name, axis)
                if key not in identifiers:
                    wanted = dim if isinstance(dim, str) else f"{name}_{axis}"
                    identifiers[key] = _identifier(wanted, identifiers.values())
                    limits[identifiers[key]] = asked.limits
                    self.notes.append(f"kept dimension {axis} of input {name!r} open, as {identifiers[key]}")
                result[name][axis] = identifiers[key]  # type: ignore[index]
        known = {dim: symbol(spelled) for dim, spelled in identifiers.items() if isinstance(dim, str)}
        terms: set[object] = set()
        for dims in result.values():
            for axis, dim in enumerate(dims or ()):
                if isinstance(dim, str) and dim not in limits and self._is_term(dim) and names_of(dim) <= known.keys():
                    dims[axis] = str(computed(dim, known))  # type: ignore[index]
                    terms.add(dims[axis])  # type: ignore[index]
        settled = limits.keys() | terms
        dims_left = [dim for dims in result.values() for dim in dims or () if not isinstance(dim, int)]
        if any(dim not in settled for dim in dims_left):
            raise InputError(request(result, self._source))
        ranges = {
            name: tuple(limits.get(dim) if isinstance(dim, str) else None for dim in dims or ())
            for name, dims in result.items()
        }
        return result, {name: found for name, found in ranges.items() if any(found)}


def _identifier(name: str, taken: Iterable[str]) -> str:
    """Spell a name as an identifier that is not yet taken."""
    base = re.sub(r"\W", "_", name[:_LONGEST_NAME], flags=re.ASCII)
    base = base if base[:1].isalpha() or base[:1] == "_" else f"dim_{base}"
    found, number, others = base, 1, set(taken)
    while found in others or keyword.iskeyword(found):
        found, number = f"{base}_{number}", number + 1
    return found


def spelled(dims: Sequence[int | str | None]) -> str:
    """Spell a shape, ? for what is not known."""
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in dims) + "]"


def listed(declared: Mapping[str, Sequence[int | str | None] | None]) -> str:
    """Spell shapes by name."""
    return ", ".join(f"{name}: {'unknown shape' if dims is None else spelled(dims)}" for name, dims in declared.items())


def request(shapes: Mapping[str, Sequence[int | str | None] | None], source: str) -> str:
    """Ask for the sizes that are missing."""
    options = [
        f"--input-shape {name}:"
        + ("..." if dims is None else ",".join(str(dim) if isinstance(dim, int) else "..." for dim in dims))
        for name, dims in shapes.items()
        if dims is None or any(not isinstance(dim, int) for dim in dims)
    ]
    names = dict.fromkeys(dim for dims in shapes.values() for dim in dims or () if isinstance(dim, str))
    ranges = ",".join(f"{name}=1..512" for name in names) or "NAME=1..512"
    return (
        f"{source}: the model leaves dimensions of its inputs open ({listed(shapes)}); give their sizes: "
        f"{' '.join(options)} with a number for each ..., or keep them open: --dynamic {ranges}"
    )
