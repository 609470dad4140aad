"""The names that mosaicml-streaming imports when it is loaded; the comparison uses none of them."""


def to_tensor(image: object) -> object:
    """Not to be called."""
    raise NotImplementedError("a stand-in for torchvision: it is imported, never used")
