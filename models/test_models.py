"""The model sweep as pytest collects it: `pytest -n auto models --backend spyre --tier pr`."""

from conformance.plugin import SuiteItems

models = SuiteItems("models")
