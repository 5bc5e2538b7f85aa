"""exceptions.toml: what it may say, and what is said of mistakes in it."""

import pytest

from models.zoo import architectures, exceptions


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[a", "exceptions.toml"),
        ('[bert]\nreason = "x"\nconfigg = {}', r"\[bert\].*configg"),
        ('[bert]\nreason = "x"\nkeep = "hidden_size"', r"\[bert\].*keep"),
        ("[bert]\nkeep = []", r"\[bert\]: needs a reason"),
        ('[bert]\nreason = "x"\nbuilder = "magic"', r"\[bert\]: builder: 'magic'"),
        ('[bert]\nreason = "x"\n[bert.inputs]\nx = { kind = "words" }', r"\[bert\].*inputs"),
        ('[bert]\nreason = "x"\n[bert.inputs]\nx = { kind = "builder", builder = "no" }', r"\[bert\]: inputs\.x"),
    ],
)
def test_a_mistake_is_named_with_file_and_key(text, complaint):
    with pytest.raises(exceptions.BadExceptions, match=complaint) as caught:
        exceptions.parse(text, "exceptions.toml")
    assert str(caught.value).startswith("exceptions.toml")


def test_every_entry_is_of_an_architecture_and_a_task_that_it_has():
    known = architectures.architectures()
    for key in exceptions.entries():
        model_type, _, task = key.partition("/")
        assert model_type in known, key
        assert not task or task in known[model_type].tasks, key


def test_a_task_adds_to_what_is_said_of_its_type():
    entries = exceptions.parse(
        '[bert]\nreason = "a"\nconfig = { x = 1, y = 1 }\n["bert/masked-lm"]\nreason = "b"\nconfig = { y = 2 }', "f"
    )
    found = exceptions.combined(entries, "bert", "masked-lm")
    assert (found.reason, found.config) == ("b", {"x": 1, "y": 2})
    assert exceptions.combined(entries, "bert", "base").config == {"x": 1, "y": 1}
    assert exceptions.combined(entries, "gpt2", "base") == exceptions.Entry()
