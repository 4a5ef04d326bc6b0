"""Seeded made-up weights for torch modules, with batch normalisation calibrated so that signals keep their size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


@torch.no_grad()
def with_weights(module: Module, seed: int, calibration: Sequence[Tensor] | None = None) -> Module:
    """Fill a module with seeded weights, in place, and put it into evaluation mode.

    Filters follow He et al. (2015), "Delving Deep into Rectifiers", equation 10, other products have unit gain.

    Parameters
    ----------
    module : torch.nn.Module
        The module.
    seed : int
        Seed of the weights.
    calibration : sequence of torch.Tensor or None
        Inputs to run once so that the running statistics of batch normalisation are those of a real signal, as in a
        trained net; needed if the module holds batch normalisation.
    """
    generator = torch.Generator().manual_seed(seed)
    for part in module.modules():
        if isinstance(part, nn.Conv2d | nn.Conv3d | nn.ConvTranspose2d):
            _fill_filters(part, generator)
        elif isinstance(part, nn.Linear):
            part.weight.normal_(0.0, part.in_features**-0.5, generator=generator)
        elif isinstance(part, nn.Embedding):
            part.weight.normal_(0.0, 0.05, generator=generator)
        elif isinstance(part, nn.BatchNorm2d | nn.LayerNorm):
            part.weight.uniform_(0.8, 1.2, generator=generator)
        # Normalised signals centred on 0.5 pass a rectifier mostly unbent: centred on 0 they make a deep net chaotic,
        # and rounding errors then grow with each layer until no two correct programs agree.
        centre = 0.5 if isinstance(part, nn.BatchNorm2d) else 0.0
        for name in ("bias", "mix"):
            vector = getattr(part, name, None)
            if isinstance(vector, nn.Parameter):
                vector.normal_(centre, 0.1, generator=generator)
    if calibration is not None:
        _calibrate(module, calibration)
    return module.eval()


def _fill_filters(part: nn.Conv2d | nn.Conv3d | nn.ConvTranspose2d, generator: torch.Generator) -> None:
    """He's normal filters, their mean taken off: the rectified input is positive, and would drown the rest."""
    axes = [0, 2, 3] if isinstance(part, nn.ConvTranspose2d) else list(range(1, part.weight.dim()))
    fan_in = part.weight[:, 0].numel() if isinstance(part, nn.ConvTranspose2d) else part.weight[0].numel()
    part.weight.normal_(0.0, (2.0 / fan_in) ** 0.5, generator=generator)
    part.weight.sub_(part.weight.mean(dim=axes, keepdim=True))


def _calibrate(module: nn.Module, inputs: Sequence[Tensor]) -> None:
    """Set running statistics to those of one batch: in training mode, momentum 1 replaces the old by the new."""
    module.eval()
    norms = [part for part in module.modules() if isinstance(part, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    module(*inputs)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
