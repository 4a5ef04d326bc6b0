"""Choices that the machine model makes and a search over whole networks may make otherwise.

A heuristic that has more than one good answer asks :meth:`Choices.decide`. What it may answer is noted in the module;
what a search found better is kept in a file beside the tuning database, by a key that is the same for all operators
that are alike.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tvm_ext.errors import OutputError, TuningError
from tvm_ext.system.files import write_atomically

CHOICES = "choices.json"
"""File in the folder of a tuning database."""

FORMAT = 1


FUSE, PROLOGUES = "option fuse", "option prologues"
"""Keys of options of the pipeline that change no values."""

FORKS, FORK_OPTIONS = "option threads", ("as the rules", "one below two forks", "one below four forks")
"""Key and options of the choice which of the kernels that a rule divides among threads run on one: those whose work is
less than so many times what is worth a fork."""

TIMES_A_FORK = dict(zip(FORK_OPTIONS, (1, 2, 4), strict=True))


@dataclass(frozen=True)
class Offer:
    """What could be chosen at one place.

    Attributes
    ----------
    key : str
        What is chosen for, such as ``convolution 64x56x56 -> 64, 3x3``.
    options : tuple of str
        What there is to choose from, the default among them.
    default : str
        What the machine model chooses.
    work : int
        Multiply-adds of all operators of this key together; 0 where that says nothing.
    seconds : tuple of float
        What the machine model expects each option to take, of all operators of this key together; empty where it
        expects nothing.
    """

    key: str
    options: tuple[str, ...]
    default: str
    work: int = 0
    seconds: tuple[float, ...] = ()


@dataclass
class Choices:
    """What was chosen, and what could have been.

    Attributes
    ----------
    chosen : mapping from key to option
        A key that is not there is left to the machine model, and so is one whose option there is not.
    offers : mapping from key to Offer
        Noted by :meth:`decide`.
    """

    chosen: Mapping[str, str] = field(default_factory=dict)
    offers: dict[str, Offer] = field(default_factory=dict)

    def decide(
        self, key: str, options: Sequence[str], default: str, work: int = 0, seconds: Sequence[float] = ()
    ) -> str:
        """Choose one of the options: what was found better, or else the default."""
        offer = Offer(key, tuple(options), default, work, tuple(seconds))
        known = self.offers.get(key)
        if len(options) > 1:
            self.offers[key] = offer if known is None else _together(known, offer)
        wanted = self.chosen.get(key, default)
        return wanted if wanted in options else default

    @classmethod
    def of(cls, work_dir: str | Path | None) -> Choices:
        """Read what was chosen from the folder of a tuning database; nothing where there is none."""
        return cls() if work_dir is None else cls(read_choices(Path(work_dir)))


def _together(known: Offer, offer: Offer) -> Offer:
    """Add up the work of two operators of the same key; where their options differ, no seconds are expected."""
    same = known.options == offer.options and len(known.seconds) == len(offer.seconds)
    seconds = tuple(one + other for one, other in zip(known.seconds, offer.seconds, strict=True)) if same else ()
    return replace(offer, work=known.work + offer.work, seconds=seconds)


def read_choices(folder: Path) -> dict[str, str]:
    """Read the options that were chosen, by their keys; none where nothing was chosen.

    Raises
    ------
    TuningError
        If the file cannot be read, is damaged, or of another format.
    """
    path = folder / CHOICES
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise TuningError(f"{path}: cannot be read ({error}); remove it to do without") from None
    try:
        found = json.loads(text)
        if found["format"] != FORMAT:
            raise ValueError(f"format {found['format']}, expected {FORMAT}")
        chosen = dict(found["chosen"])
        if not all(isinstance(item, str) for row in chosen.items() for item in row):
            raise ValueError("an option that is no text")
    except (KeyError, TypeError, ValueError) as error:
        raise TuningError(
            f"{path}: expected the choices of a search over a whole network ({error}); remove it to do without"
        ) from None
    return chosen


def write_choices(folder: Path, chosen: Mapping[str, str]) -> None:
    """Keep what was chosen.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    text = json.dumps({"format": FORMAT, "chosen": dict(chosen)}, indent=1, sort_keys=True)
    try:
        write_atomically(folder / CHOICES, text + "\n")
    except OSError as error:
        raise OutputError(f"cannot write {folder / CHOICES}: {error.strerror or error}") from None
