"""The decode sweep as pytest collects it: `pytest -n auto models/test_decode.py --backend spyre --tier pr`."""

from conformance.plugin import SuiteItems

decode = SuiteItems("decode")
