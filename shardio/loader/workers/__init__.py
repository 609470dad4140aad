"""The workers that make batches: threads or processes, their number, and how far ahead they work."""
