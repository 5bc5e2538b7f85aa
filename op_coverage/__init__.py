"""What to sweep: ATen ops, taken from the OpInfo database of the installed torch."""
