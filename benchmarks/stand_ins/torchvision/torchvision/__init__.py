"""A stand-in for torchvision where only its import is needed, because no build fits a torch without CUDA."""
