"""Models with trained weights, out of installed packages."""
