"""Taking care of a dataset: verify it, repair it, describe it in figures and show its samples."""
