"""DICOM files as pydicom writes them."""

from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRBigEndian, ExplicitVRLittleEndian, RLELossless, generate_uid


def write_dicom(path: Path, pixels: NDArray[Any], series: str = "1.2.3", **tags: Any) -> None:
    """Write a file of one frame, with tags by keyword; `syntax` is its transfer syntax."""
    syntax = tags.pop("syntax", ExplicitVRLittleEndian)
    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = CTImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = generate_uid(entropy_srcs=[str(path)])
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian if syntax == RLELossless else syntax
    data.SeriesInstanceUID, data.Modality = series, "CT"
    colours = pixels.shape[2] if pixels.ndim == 3 and "NumberOfFrames" not in tags else 1
    data.Rows, data.Columns = pixels.shape[1:3] if "NumberOfFrames" in tags else pixels.shape[:2]
    data.SamplesPerPixel = colours
    data.PhotometricInterpretation = "RGB" if colours == 3 else "MONOCHROME2"
    if colours == 3:
        data.PlanarConfiguration = 0
    data.BitsAllocated = data.BitsStored = 8 * pixels.itemsize
    data.HighBit = data.BitsStored - 1
    data.PixelRepresentation = int(pixels.dtype.kind == "i")
    for name, value in tags.items():
        setattr(data, name, value)
    big = syntax == ExplicitVRBigEndian
    data.PixelData = pixels.astype(pixels.dtype.newbyteorder(">" if big else "<")).tobytes()
    data["PixelData"].VR = "OB" if pixels.itemsize == 1 else "OW"
    if syntax == RLELossless:
        data.compress(RLELossless)
    path.parent.mkdir(parents=True, exist_ok=True)
    data.save_as(path, enforce_file_format=True)
