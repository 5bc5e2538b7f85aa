"""The op suite."""
