"""Backends: ways to run a callable. `protocol` says what one must provide, `registry` finds them."""
