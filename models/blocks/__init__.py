"""Layers, attention, MLPs and norms as cases of their own, each distinct one once for all models that have it."""
