"""The file system of a path: its type, its block size, and how far the kernel reads ahead."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from .control_groups import read

MOUNTS = Path("/proc/self/mountinfo")

_NETWORK = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"),
        *("ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "vastfs", "virtiofs", "wekafs"),
    )
)
_LOCAL_FUSE = frozenset(("fuseblk", "fuse.ntfs-3g", "fuse.fuse-overlayfs", "fuse.squashfuse", "fuse.lxcfs"))


@dataclass(frozen=True, slots=True)
class FileSystem:
    """A mounted file system.

    Attributes:
        type: the kernel's name for its type, such as ext4 or nfs4.
        source: what is mounted: a device, or a server and its directory.
        mount_point: where it is mounted.
        network: whether its data are on other machines. FUSE mounts count as such, unless known as local.
        block_size: the preferred size of a read in bytes.
        free, total: bytes.
        read_ahead: bytes that the kernel reads ahead, or None if it does not say.
    """

    type: str
    source: str
    mount_point: str
    network: bool
    block_size: int
    free: int
    total: int
    read_ahead: int | None


def file_system(path: Path) -> FileSystem:
    """Return the file system of `path`; raise OSError if the path does not exist."""
    real = path.resolve(strict=True)
    device, mount_point, kind, source = _mount(real)
    usage = os.statvfs(real)
    ahead = read(Path(f"/sys/class/bdi/{device}/read_ahead_kb"))
    return FileSystem(
        type=kind,
        source=source,
        mount_point=mount_point,
        network=kind in _NETWORK or (kind.startswith("fuse") and kind not in _LOCAL_FUSE),
        block_size=usage.f_bsize,
        free=usage.f_bavail * usage.f_frsize,
        total=usage.f_blocks * usage.f_frsize,
        read_ahead=int(ahead) * 1024 if ahead is not None and ahead.isdigit() else None,
    )


def _mount(path: Path) -> tuple[str, str, str, str]:
    """Device, mount point, type and source of the innermost mount that holds `path`; the last one hides others."""
    found = ("", "/", "unknown", "unknown")
    for line in (read(MOUNTS) or "").splitlines():
        place, _, rest = line.partition(" - ")
        fields, kind_and_source = place.split(" "), rest.split(" ")
        if len(fields) < 5 or len(kind_and_source) < 2:
            continue
        point = _unescaped(fields[4])
        if path.is_relative_to(point) and len(point) >= len(found[1]):
            found = (fields[2], point, kind_and_source[0], _unescaped(kind_and_source[1]))
    return found


def _unescaped(text: str) -> str:
    """Undo the kernel's octal escapes of spaces and the like."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
