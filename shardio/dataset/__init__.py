"""Datasets: opened, mixed, read and written."""
