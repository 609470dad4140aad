"""Datasets: opened, read and written."""
