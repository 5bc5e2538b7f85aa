"""Models that matter most, at realistic shapes."""
