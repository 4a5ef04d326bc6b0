"""What surrounds the two networks of a text recogniser: from a picture to their inputs, from their outputs to text.

Detection gives every pixel a probability to belong to text (differentiable binarisation); recognition reads one line
and gives a distribution over characters for every column (connectionist temporal classification).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import ndimage
from skimage.transform import resize

MEAN, DEVIATION = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
TEXT_PROBABILITY = 0.3
LINE_HEIGHT = 48


@dataclass(frozen=True)
class Box:
    """A text line in the picture: rows ``top`` to ``bottom``, columns ``left`` to ``right`` (pixels)."""

    top: int
    left: int
    bottom: int
    right: int


def detection_input(picture: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Scale an RGB picture (values 0 to 1) to ``shape`` and normalise it: ``float32[1, 3, H, W]``."""
    scaled = resize(picture, shape, anti_aliasing=True)
    return ((scaled - MEAN) / DEVIATION).transpose(2, 0, 1)[None].astype("float32")


def text_boxes(probability: np.ndarray, picture_shape: tuple[int, int]) -> list[Box]:
    """Find the lines in a probability map ``[H, W]``, top to bottom, in pixels of the picture.

    The network is trained on shrunken lines, so every box grows by 1.6 times its area over its perimeter.
    """
    labels, _ = ndimage.label(probability > TEXT_PROBABILITY)
    scale_h, scale_w = picture_shape[0] / probability.shape[0], picture_shape[1] / probability.shape[1]
    boxes = []
    for rows, columns in ndimage.find_objects(labels):
        height, width = rows.stop - rows.start, columns.stop - columns.start
        if height < 4 or width < 8:
            continue
        grow = 1.6 * height * width / (2 * (height + width))
        top, bottom = max(0, rows.start - grow), min(probability.shape[0], rows.stop + grow)
        left, right = max(0, columns.start - grow), min(probability.shape[1], columns.stop + grow)
        boxes.append(Box(int(top * scale_h), int(left * scale_w), int(bottom * scale_h), int(right * scale_w)))
    return sorted(boxes, key=lambda box: (box.top, box.left))


def recognition_input(picture: np.ndarray, box: Box, width: int) -> np.ndarray:
    """Cut out a line and scale it to 48 rows, padded to ``width`` columns: ``float32[1, 3, 48, width]``."""
    line = picture[box.top : box.bottom, box.left : box.right]
    columns = min(width, max(1, round(line.shape[1] * LINE_HEIGHT / line.shape[0])))
    padded = np.zeros((3, LINE_HEIGHT, width), "float32")
    padded[:, :, :columns] = (resize(line, (LINE_HEIGHT, columns), anti_aliasing=True).transpose(2, 0, 1) - 0.5) / 0.5
    return padded[None]


def decode(scores: np.ndarray, characters: list[str]) -> str:
    """Read text from ``scores[columns, classes]``: best class per column, repeats merged, blanks dropped."""
    best = scores.argmax(axis=1)
    kept = [index for position, index in enumerate(best) if index and (position == 0 or best[position - 1] != index)]
    return "".join(characters[index - 1] for index in kept)
