"""The loader: batches of a dataset for one rank, in order, resumable."""
