"""The block sweep as pytest collects it: `pytest -n auto models/test_blocks.py --backend spyre --tier pr`."""

from conformance.plugin import SuiteItems

blocks = SuiteItems("blocks")
