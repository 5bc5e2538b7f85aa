"""The conformance engine: cases, judgement, isolation, records. Knows no op, no model and no accelerator."""
