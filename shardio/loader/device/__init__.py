"""The transfer of batches to their device: copies on a separate stream, or reads from files to the GPU."""
