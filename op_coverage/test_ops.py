"""The op sweep as pytest collects it: `pytest -n auto op_coverage --backend spyre --tier pr`."""

from conformance.plugin import SuiteItems

ops = SuiteItems("ops")
