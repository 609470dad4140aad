"""Engines: they decode encoded images and carry out transforms' steps on the pixels."""
