"""Which bodies an event names, and that no value of a program is taken for a name."""

from __future__ import annotations

import pytest

from steplog._kernel.references import references

NAME = "a" * 64


@pytest.mark.parametrize(
    "data",
    [
        {"request": {"body": {"body": NAME, "size": 9}}},
        {"exchanges": [{"status": 200, "body": {"body": NAME, "size": 9}}]},
        {"result": {"$steplog": "body", "sha256": NAME, "size": 9}},
        {"args": {"$steplog": "body", "sha256": NAME, "size": 9}},
        {"exact": [{"body": NAME, "size": 9}]},
    ],
)
def test_what_steplog_has_laid_out_names_a_body(data):
    assert list(references(data)) == [NAME]


@pytest.mark.parametrize(
    "data",
    [
        {"result": {"body": "hello", "size": 5}},
        {"args": {"mail": {"body": "hello", "size": "large"}}},
        {"result": [{"body": "hello", "size": 5}]},
        {"request": {"body": {"json": {"body": "hello", "size": 5}}}},
        {"request": {"params": {"body": "hello", "size": 5}}},
    ],
)
def test_a_value_of_a_program_names_none(data):
    assert list(references(data)) == []
