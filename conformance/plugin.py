"""The pytest plugin (placeholder until the plugin lands in the next commits)."""
