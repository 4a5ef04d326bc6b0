"""``tvm_ext.tuning.tune``: search for schedules of a model's kernels that are faster than the rules' own choices.

One loop for all targets: it opens the folder, takes over what earlier runs completed, has the pending trials run by
the search that belongs to the target's measurer, and notes what came of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

import tvm

from tvm_ext.backends.registry import backend_of
from tvm_ext.database.files import announced
from tvm_ext.database.folders import check_database, note_version, open_database
from tvm_ext.errors import OptionError, TuningError
from tvm_ext.frontend.imported import ImportedModel
from tvm_ext.layout.choices import read_choices
from tvm_ext.options import PipelineOptions
from tvm_ext.tuners.measure.measurer import Measurer
from tvm_ext.tuners.recipe import Recipe
from tvm_ext.tuning.counted import CountedSearch
from tvm_ext.tuning.result import KernelResult, TuningResult
from tvm_ext.tuning.search import Course, Request, Search
from tvm_ext.tuning.tasks import DEFAULT_OPTIONS, Task, kernels_to_tune
from tvm_ext.tuning.timed import TimedSearch

__all__ = [
    "KernelResult",
    "Task",
    "TuningResult",
    "kernels_to_tune",
    "open_database",
    "tune",
]


def tune(
    mod: tvm.IRModule | ImportedModel,
    target: tvm.target.Target,
    work_dir: str | Path,
    trials: int,
    recipe: Recipe,
    *,
    seed: int = 0,
    batch: int = 16,
    options: PipelineOptions = DEFAULT_OPTIONS,
    measurer: Measurer | None = None,
    compare: str | Path | None = None,
    store_features: bool = False,
    confirm: bool = True,
    sizes: Sequence[Mapping[str, int]] = (),
    progress: Callable[[TuningResult], None] = lambda result: None,
) -> TuningResult:
    """Tune the kernels of a Relax module.

    A target whose row has a measurer that counts cycles is tuned with that (VTA); times are those at its clock. Others
    are run: the rule's own choice of each kernel is measured first, and the other trials go where most time can be
    saved. At the end, unless other machines measured, the fastest candidates are timed in turns with the rule's choice,
    and these times take the place of the first ones; then the whole network is timed in turns with the untuned one, and
    compilations leave kernels alone with whose records it is slower.

    Parameters
    ----------
    mod : IRModule or ImportedModel
        As :func:`tvm_ext.import_model` gives it.
    work_dir : path
        Folder of the database. One that holds records is gone on with: its trials count, and what a killed run did not
        come to compare is compared. Several runs may use one folder at a time, and keep one another's records.
    trials : int
        Measurements, over all kernels and runs.
    options : PipelineOptions
        Those the model will be compiled with: they decide which kernels there are.
    measurer : Measurer, optional
        A :class:`~tvm_ext.tuners.measure.remote.RemoteMeasurer` measures on other machines; one for this by default.
    compare : path, optional
        Folder of the database of an earlier run, whose best times are noted in the result.
    store_features : bool
        See :class:`~tvm_ext.tuners.metaschedule.strategy.TunerStrategy`.
    confirm : bool
        Whether the whole network is timed at the end; two compilations and a few seconds.
    sizes : sequence of mapping from str to int
        That a model with open extents is tuned for, by the names of its dimensions: its kernels get several versions,
        and which one runs is decided by the extents of a run. By default a small, a middling and a large size; see
        :func:`tvm_ext.tuning.sizes.sizes_to_tune`.
    progress : callable
        Called when the kernels are known, and after every batch.

    Raises
    ------
    TuningError
        If there is nothing to tune, a database cannot be read, the one to compare with has none of the kernels, or no
        candidate could be measured.
    RemoteError
        If no server is left of those that measure.
    OutputError
        If the folder cannot be written.
    OptionError
        If there is a measurer, or store features, for a target that is tuned by counting; if sizes are none of the
        model's; if module, recipe or trials are something else.
    """
    _check(mod, trials, recipe)
    start = time.perf_counter()
    check_database(Path(work_dir))
    if compare is not None and not Path(compare).is_dir():
        raise TuningError(f"no tuning database in {compare}: expected the --work-dir of an earlier run")
    if read_choices(Path(work_dir)):  # of a search over the whole network: they decide which kernels there are
        options = replace(options, work_dir=str(work_dir))
    search = _search_of(mod, target, options, measurer, store_features, confirm, sizes)
    if compare is not None:
        _note_earlier(search, Path(compare))
    folder = Path(work_dir)
    database = open_database(folder)
    note_version(folder)
    with announced(folder) as beside:
        outcome = TuningResult(search.kernels, beside=beside)
        outcome.resumed, outcome.others = search.resume(folder, database)
        if search.is_pending(trials):
            progress(outcome)
            search.run(Request(trials, recipe, seed, batch), Course(outcome, progress, start))
    outcome.seconds["total"] = time.perf_counter() - start
    if all(result.best is None for result in search.kernels):
        reasons = {result.error for result in search.kernels if result.error}
        raise TuningError(f"no candidate could be measured: {next(iter(reasons), 'nothing was tried')}")
    return outcome


def _check(mod: Any, trials: Any, recipe: Any) -> None:
    if not isinstance(mod, tvm.IRModule | ImportedModel):
        raise OptionError(f"what is to be tuned is {mod!r}; expected a module or what tvm_ext.import_model gives")
    if not isinstance(recipe, Recipe):
        raise OptionError(
            f"recipe is {recipe!r}; expected a recipe, such as tvm_ext.tuners.recipes.recipe('evolution_expected')"
        )
    if isinstance(trials, bool) or not isinstance(trials, Integral) or trials < 0:
        raise OptionError(f"trials is {trials!r}; expected a whole number of 0 or more")


def _search_of(
    mod: tvm.IRModule | ImportedModel,
    target: tvm.target.Target,
    options: PipelineOptions,
    measurer: Measurer | None,
    store_features: bool,
    confirm: bool,
    sizes: Sequence[Mapping[str, int]],
) -> Search:
    counting = backend_of(target).measurer
    if counting is None:
        return TimedSearch(mod, target, options, measurer, store_features, confirm, sizes)
    counter = counting(target)
    if sizes:
        raise OptionError(f"{target} is tuned with fixed extents: leave out sizes, and give them when importing")
    if measurer is not None or store_features:
        raise OptionError(f"{target} is tuned with {counter.name}: leave out measurer and store_features")
    return CountedSearch(mod.mod if isinstance(mod, ImportedModel) else mod, counter)


def _note_earlier(search: Search, folder: Path) -> None:
    found = search.earlier(folder)
    for result, seconds in zip(search.kernels, found, strict=True):
        result.earlier = seconds
    if all(seconds is None for seconds in found):
        raise TuningError(
            f"the database in {folder} holds none of this model's {len(found)} kernels: it is of another model, input "
            "shape, target or release; compare with a run of this one"
        )
