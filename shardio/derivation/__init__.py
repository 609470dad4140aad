"""Datasets made by a function of another dataset's samples: features, latents, a teacher's outputs, quality scores."""
