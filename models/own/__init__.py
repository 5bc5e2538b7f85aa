"""Models that a user brings along, declared in a TOML file; docs/your-own-models.md says how."""
