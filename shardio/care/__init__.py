"""Datasets looked after: verified, repaired, summed up, shown."""
