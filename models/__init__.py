"""What to sweep: models."""
