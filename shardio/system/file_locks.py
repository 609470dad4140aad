"""Locks on files and folders, which end with their process, however that ends."""

import errno
import fcntl

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def try_lock(descriptor: int, *, shared: bool = False) -> bool | None:
    """Lock a file that is open, until it is closed, and return whether that was possible: no other process has it.

    None on a file system without locks.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True
