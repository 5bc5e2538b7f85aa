"""What the subcommands do. Imported when one is called, so that `conformance --help` stays quick."""
