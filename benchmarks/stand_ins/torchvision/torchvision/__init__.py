"""Stands in for torchvision where only its import is needed, as there is no build of it for this torch without CUDA."""
