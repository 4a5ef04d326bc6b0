"""Samplers: decide which of an explorer's candidates are measured."""

from tvm_ext.tuners.samplers.adaptive import AdaptiveSampler
from tvm_ext.tuners.samplers.base import History, Sampler
from tvm_ext.tuners.samplers.diversity import DiversitySampler
from tvm_ext.tuners.samplers.greedy import GreedySampler, ReducedSampler

__all__ = ["AdaptiveSampler", "DiversitySampler", "GreedySampler", "History", "ReducedSampler", "Sampler"]
