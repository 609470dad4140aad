"""The names that mosaicml-streaming imports at startup; the comparison uses none of them."""


def to_tensor(image: object) -> object:
    """Exists for the import only."""
    raise NotImplementedError("a stand-in for torchvision: it is imported, never used")
