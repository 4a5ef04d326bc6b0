"""Tuned schedules of layers, in a file of a tuning folder: knobs by the geometry of the layer they are for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from tvm_ext.backends.vta.codegen.compute import Epilogue
from tvm_ext.backends.vta.codegen.geometry import Conv2d
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.timing.costs import CycleCosts
from tvm_ext.database.files import VTA_SCHEDULES
from tvm_ext.errors import TuningError, VTAProgramError
from tvm_ext.schedules.vta.conv2d import ORDERS, ConvKnobs
from tvm_ext.system.files import write_atomically

FORMAT = 1


@dataclass(frozen=True)
class TunedLayer:
    """The best schedule that was found for a layer.

    Attributes
    ----------
    order : str
        A key of :data:`tvm_ext.schedules.vta.conv2d.ORDERS`.
    knobs : ConvKnobs
    cycles : int
        Of the layer alone.
    trials : int
        Candidates that were looked at.
    """

    order: str
    knobs: ConvKnobs
    cycles: int
    trials: int


def layer_key(config: VTAConfig, costs: CycleCosts, conv: Conv2d, epilogue: Epilogue) -> str:
    """Name what a schedule is for: the design, its costs, the geometry, and what is added to the sums.

    How far sums are shifted is not part of it: models differ in that, and what they have in common is what counts.
    """
    parts = {
        "config": asdict(config), "costs": costs.name, "geometry": asdict(conv),
        "bias": epilogue.bias, "residual": epilogue.residual,
    }  # fmt: skip
    return json.dumps(parts, sort_keys=True)


def read_tuned(folder: Path) -> dict[str, TunedLayer]:
    """Read the tuned layers of a folder by :func:`layer_key`; none if nothing was tuned for VTA there.

    Raises
    ------
    TuningError
        If the file cannot be read.
    """
    path = folder / VTA_SCHEDULES
    try:
        document = json.loads(path.read_text())
        if document["format"] != FORMAT:
            raise TuningError(
                f"{path} has format {document['format']}; this version reads {FORMAT}: remove it and tune again"
            )
        return {key: _layer(row, Conv2d(**json.loads(key)["geometry"])) for key, row in document["layers"].items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise TuningError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, VTAProgramError) as error:
        raise TuningError(f"{path} is damaged ({error}); remove it and tune again") from None


def _layer(row: Mapping[str, object], conv: Conv2d) -> TunedLayer:
    known = {field.name for field in fields(ConvKnobs)}
    knobs, order = row["knobs"], row["order"]
    if not isinstance(knobs, dict) or set(knobs) != known or order not in ORDERS:
        raise ValueError(f"no schedule has knobs {knobs} and order {order}")
    numbers = [*knobs.values(), row["cycles"], row["trials"]]
    if not all(type(number) is int and number > 0 for number in numbers):  # a bool is an int, too
        raise ValueError(f"knobs, cycles and trials are positive; found {numbers}")
    largest = max(conv.batches, conv.in_blocks, conv.out_blocks, conv.out_height, conv.out_width)
    # Larger ones would be lowered for minutes, and cut off at the end of the axis.
    if max(knobs.values()) > largest:
        raise ValueError(f"knobs {knobs} are beyond a layer of {largest} at most")
    return TunedLayer(str(order), ConvKnobs(**knobs), int(numbers[-2]), int(numbers[-1]))


def write_tuned(folder: Path, layers: Mapping[str, TunedLayer]) -> None:
    """Write the tuned layers of a folder, in place of those that are there."""
    document = {"format": FORMAT, "layers": {key: asdict(layer) for key, layer in sorted(layers.items())}}
    write_atomically(folder / VTA_SCHEDULES, json.dumps(document, indent=1) + "\n")
