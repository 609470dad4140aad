"""How batches reach their device: copies on a stream of their own, or reads from files to the GPU."""
