"""Tuners: configuration spaces, explorers, samplers, initialisers, cost models, measuring, MetaSchedule adapters.

``strategy=tvm_ext.tuners.chameleon()`` makes TVM's MetaSchedule search with a tuner of this package; builder and runner
on warm workers come from :func:`builder_and_runner`. The tuners themselves, in :mod:`tvm_ext.tuners.recipes`, know
nothing of TVM.
"""

from __future__ import annotations

from typing import Any

from tvm_ext.errors import OptionError


def strategy(
    tuner: str = "chameleon",
    *,
    seed: int = 0,
    batch: int | None = None,
    initial: int | None = None,
    acquisition: str | None = None,
    store_features: bool = False,
) -> Any:
    """Make a search strategy for ``strategy=`` of MetaSchedule's functions.

    Parameters
    ----------
    tuner : str
        A row of :data:`tvm_ext.tuners.recipes.RECIPES`.
    seed : int
    batch, initial : int, optional
        Most candidates of an iteration; configurations measured before the cost model is used.
    acquisition : str, optional
        ``expected_improvement``, ``confidence_bound`` or ``thompson``: candidates are chosen by the mean and the spread
        of what is predicted of them; else the best predicted come first.
    store_features : bool
        Whether the best predicted candidates are looked at again with TVM's per-store features.

    Raises
    ------
    OptionError
        If there is no such tuner or acquisition function; the message lists those there are. If a number is out of
        range.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise OptionError(f"seed is {seed!r}; expected 0 or more")
    from tvm_ext.tuners.metaschedule.strategy import TunerStrategy
    from tvm_ext.tuners.recipes import recipe

    return TunerStrategy(recipe(tuner, batch, initial, acquisition), seed, store_features=store_features)


def chameleon(**options: Any) -> Any:
    """Search by reinforcement learning with adaptive sampling; see :func:`strategy`."""
    return strategy("chameleon", **options)


def autotvm_sa(**options: Any) -> Any:
    """Search by simulated annealing, the best predicted measured, as AutoTVM; see :func:`strategy`."""
    return strategy("autotvm_sa", **options)


def sa_as(**options: Any) -> Any:
    """Search by simulated annealing with adaptive sampling; see :func:`strategy`."""
    return strategy("sa_as", **options)


def evolution(**options: Any) -> Any:
    """Search by evolution on the cost model, in small batches; see :func:`strategy`."""
    return strategy("evolution", **options)


def validity(**options: Any) -> Any:
    """Search by simulated annealing that begins where the target's resources allow; see :func:`strategy`.

    The oracle is the target's: of CUDA its threads, memories and vectors, of Hexagon the bytes of VTCM, of VTA its
    buffers (``tvm-ext tune``). Where a target runs whatever is scheduled, validity is learnt from what fails.
    """
    return strategy("validity", **options)


def glimpse(**options: Any) -> Any:
    """Search that begins with what was learnt on other machines and layers; see :func:`strategy`.

    MetaSchedule's own search says nothing of the kernel that a prior could be asked with: there, another tuner is used.
    ``tvm-ext tune`` for VTA describes the kernel.
    """
    return strategy("glimpse", **options)


def options(tuner: str = "chameleon", **more: Any) -> dict[str, Any]:
    """Give the keyword arguments that one of MetaSchedule's tuning functions needs for a tuner of this package.

    ``ms.tune_tir(mod, target, "tuned", 64, **tvm_ext.tuners.options("chameleon"))`` has the strategy, builder and
    runner on warm workers, and no cost model of MetaSchedule's own, which would be trained and not asked.

    Parameters
    ----------
    tuner : str
        A row of :data:`tvm_ext.tuners.recipes.RECIPES`.
    **more
        Of :func:`strategy`.

    Raises
    ------
    OptionError
        If there is no such tuner.
    """
    chosen = strategy(tuner, **more)
    from tvm.s_tir import meta_schedule as ms

    builder, runner = builder_and_runner()
    return {"strategy": chosen, "builder": builder, "runner": runner, "cost_model": ms.cost_model.RandomModel()}


def builder_and_runner(measurer: Any = None, **options: Any) -> tuple[Any, Any]:
    """Make a builder and a runner on warm workers, for ``builder=`` and ``runner=`` of MetaSchedule's functions.

    Parameters
    ----------
    measurer : Measurer, optional
        One that is there, such as a :class:`~tvm_ext.tuners.measure.remote.RemoteMeasurer`; a new one if left out.
    **options
        Of :class:`tvm_ext.tuners.measure.measurer.Measurer`, for a new one.

    Raises
    ------
    OptionError
        If the measurer is something else, or options come with one.
    """
    from tvm_ext.tuners.measure.measurer import Measurer
    from tvm_ext.tuners.metaschedule import builder

    if measurer is not None and (options or not isinstance(measurer, Measurer)):
        found = f"{measurer!r} and {', '.join(options)}" if options else repr(measurer)
        raise OptionError(f"builder_and_runner was given {found}; expected a Measurer alone, or options of a new one")
    return builder.builder_and_runner(measurer or Measurer(**options))
