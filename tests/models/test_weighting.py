"""What models count when ops are ranked."""

from models import weighting


def test_a_priority_multiplies_the_weight_of_its_kind():
    found = weighting.weights({"own/a": 2.0, "own/b": 0.5}, {"own/*": 10.0, "*": 1.0})
    assert found == {"own/a": 20.0, "own/b": 5.0, "own/*": 10.0, "*": 1.0}
    assert list(found)[:2] == ["own/a", "own/b"]


def test_the_table_prefers_ones_own_to_priority_models_to_the_zoo():
    table = weighting.table()
    assert table["own/*"] > table["priority/*"] > table["*"] > 0
    assert list(table)[-1] == "*"
