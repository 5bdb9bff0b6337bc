"""Transforming images: not supported."""

import enum


class InterpolationMode(enum.Enum):
    """The names that transformers maps PIL's filters to, at import."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"
