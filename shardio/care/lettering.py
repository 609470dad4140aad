"""Text in pictures: Pillow's own font, and what of a text it can draw."""

from functools import cache

from PIL import ImageFont


def drawable(text: str) -> str:
    """Return a text in one line, with question marks for the characters that the font lacks."""
    return " ".join(text.split()).encode("ascii", "replace").decode()


@cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return the font in a size, in pixels."""
    return ImageFont.load_default(size)
