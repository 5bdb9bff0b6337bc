"""Reading images: not supported."""

import enum

from ._missing import missing


class ImageReadMode(enum.Enum):
    """Colour modes, as far as they are named at import."""

    RGB = 3


decode_image = missing("io.decode_image")
decode_jpeg = missing("io.decode_jpeg")
