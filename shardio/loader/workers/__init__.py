"""Who makes batches: threads or processes, how many, how far ahead."""
