"""Transforming images, function by function: not supported."""

from .._missing import missing
from . import InterpolationMode

__all__ = ["InterpolationMode", "pil_to_tensor"]

pil_to_tensor = missing("transforms.functional.pil_to_tensor")
