"""Files in the helper process, for functions that `LibraryFile.call` runs there; no other process imports this."""

from ..containers._hdf5_service import open_file as open_file
