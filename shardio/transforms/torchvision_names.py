"""Names of torchvision's transforms, and what shardio has in their place."""

COUNTERPARTS = dict.fromkeys(("ToTensor", "ToDtype", "ConvertImageDtype", "ConvertDtype"), "ToFloat")
"""Transforms with the same meaning under another name."""

NEEDLESS = ("ToImage", "ToPILImage", "PILToTensor", "ToPureTensor")
"""Transforms between forms of an image, of which shardio has one."""

GROUPS = ("Compose", "Sequential")

_OTHERS = {
    *("AugMix", "AutoAugment", "ElasticTransform", "FiveCrop", "GaussianNoise", "Grayscale", "JPEG", "Lambda"),
    *("LinearTransformation", "Pad", "RandomAdjustSharpness", "RandomAffine", "RandomAutocontrast", "RandomEqualize"),
    *("RandomInvert", "RandomOrder", "RandomPerspective", "RandomPhotometricDistort", "RandomPosterize"),
    *("RandomShortestSize", "RandomSolarize", "RandomVerticalFlip", "RandomZoomOut", "ScaleJitter", "TenCrop"),
}
"""Transforms that shardio has not."""

OF_YOUR_OWN = (
    "Call it in a function of your own, def f(sample): return "
    "{**sample, 'image': it(sample['image'].permute(2, 0, 1))}, and give the Loader map=f, map_by='sample', "
    "isolate=True (see 'A transform of your own' in docs/tutorials/from-imagefolder.md)"
)


def instead_of(name: str) -> str:
    """Return what to use in place of a transform of torchvision that shardio has not; "" for another name."""
    if name in GROUPS:
        return "a Loader's transforms= takes a list of transforms"
    if name in COUNTERPARTS:
        return f"shardio.{COUNTERPARTS[name]} takes its place"
    if name in NEEDLESS:
        return "leave it out, a Loader delivers images as tensors; shardio.ToFloat makes them floats"
    return f"it is torchvision's. {OF_YOUR_OWN}" if name in _OTHERS else ""
