"""Engines: what turns encoded images and a transform's steps into pixels in a batch."""
