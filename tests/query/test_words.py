"""Words of texts: the same as a plain loop finds, for any Unicode."""

import sys

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidInputError
from penstock.query.indexes.text import Query, Tokenizer
from tests.query.text_reference import words_of

CHARACTERS = [
    *"abZ09_ -.'\"\n", "é", "e\u0301", "\u0301", "ß", "Ж", "ﬁ", "Ａ", "²", "ｶ", "ﾞ", "हि", "न्", "ع", "\U0001f600",
    "機", "器", "人", "\ufe00", "の", "カ", "ー", "々", "한", "글", "ㄅ", "\U00020000", "、", "。", "\u200d",
]  # fmt: skip
texts = st.lists(st.none() | st.lists(st.sampled_from(CHARACTERS), max_size=12).map("".join), max_size=8)


def words(tokenizer: Tokenizer, values: list[str | None]) -> list[list[str]]:
    found = tokenizer.tokens(pa.array(values, pa.string()))
    vocabulary = found.vocabulary.to_pylist()
    assert len(set(vocabulary)) == len(vocabulary)
    assert len(found.offsets) == len(values) + 1
    return [
        [vocabulary[code] for code in found.codes[start:end]]
        for start, end in zip(found.offsets, found.offsets[1:], strict=False)
    ]


@given(texts)
@settings(max_examples=150)
def test_words_are_those_of_a_plain_loop(values: list[str | None]) -> None:
    assert words(Tokenizer(), values) == [[] if text is None else words_of(text) for text in values]


@given(texts, st.integers(0, 8), st.integers(0, 8))
@settings(max_examples=30)
def test_a_slice_has_the_words_of_its_texts(values: list[str | None], start: int, count: int) -> None:
    found = Tokenizer().tokens(pa.array(values, pa.string()).slice(min(start, len(values)), count))
    assert len(found.codes) == sum(len(words_of(text or "")) for text in values[start : start + count])


def test_words() -> None:
    values: list[str | None] = [
        "The Robot's ARM_2, cafe\u0301!", None, "", "iPhone手机壳 猫", "Ｆｕｌｌ ﬁne", "हिन्दी में", "한국어를", "x" * 100,
    ]  # fmt: skip
    assert words(Tokenizer(), values) == [
        ["the", "robot", "s", "arm_2", "café"],
        [],
        [],
        ["iphone", "手机", "机壳", "猫"],
        ["full", "fine"],
        ["हिन्दी", "में"],
        ["한국", "국어", "어를"],
        ["x" * 64],
    ]


def test_stems_are_those_of_the_library() -> None:
    assert words(Tokenizer("english"), ["Running robots ran", "機器人 runs"]) == [
        ["run", "robot", "ran"],
        ["機器", "器人", "run"],
    ]
    assert words(Tokenizer("german"), ["Häuser"]) == [["haus"]]


def test_a_language_without_a_stemmer_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"no stemmer for 'klingon'; choose one of .*english"):
        Tokenizer("klingon")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "snowballstemmer", None)
    with pytest.raises(InvalidInputError, match=r"pip install 'penstock\[query\]'"):
        Tokenizer("swedish")


def test_a_query_has_words_and_phrases_once() -> None:
    query = Tokenizer().query('"red robot" arm Arm red "Red  robot" "one" "" 機器人 "機器人" open "quote')
    assert query == Query(("arm", "red", "one", "機器", "器人", "open", "quote"), (("red", "robot"), ("機器", "器人")))
    assert Tokenizer().query(" ?! ") == Query((), ())
