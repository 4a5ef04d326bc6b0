"""Explorers: look for configurations that a cost model thinks well of."""

from tvm_ext.tuners.explorers.base import Exploration, Explorer, Score
from tvm_ext.tuners.explorers.evolution import Evolution
from tvm_ext.tuners.explorers.exhaustive import Exhaustive
from tvm_ext.tuners.explorers.random import RandomSearch
from tvm_ext.tuners.explorers.simulated_annealing import SimulatedAnnealing

__all__ = ["Evolution", "Exhaustive", "Exploration", "Explorer", "RandomSearch", "Score", "SimulatedAnnealing"]
