"""Token ids read back for people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from agent_models import DEMO
from tokenizers import decoders, models

from concur_batch.agent.tokenizer import TokenizerError, load_tokenizer
from concur_batch.agent.vocabulary import Vocabulary


def test_control_tokens_show_and_pieces_make_the_text() -> None:
    vocabulary, ids = Vocabulary(DEMO), load_tokenizer(DEMO).encode("<|im_start|>user\n a  b<|im_end|>")
    assert vocabulary.text(ids) == "<|im_start|>user\n a  b<|im_end|>"
    assert "".join(map(vocabulary.piece, ids)) == vocabulary.text(ids)
    assert vocabulary.piece(10**6) == ""


def test_a_piece_that_is_no_whole_character_is_told_as_the_vocabulary_writes_it() -> None:
    vocabulary = Vocabulary(DEMO)
    ids = load_tokenizer(DEMO).encode("\U0001f9ff")
    assert vocabulary.text(ids) == "\U0001f9ff"
    assert len(ids) > 1
    assert not [token for token in ids if "\ufffd" in vocabulary.piece(token) or not vocabulary.piece(token)]


def test_a_sentencepiece_space_is_kept(tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"▁the": 0, "x": 1}, unk_token="x"))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert Vocabulary(tmp_path).piece(0) == "▁the"
    assert Vocabulary(tmp_path).text([0, 0]) == "the the"


def test_what_is_no_tokenizer_is_told(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=f"{tmp_path}: no tokenizer.json"):
        Vocabulary(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"no": "tokenizer"}))
    with pytest.raises(TokenizerError, match=f"{tmp_path}/tokenizer.json: not a tokenizer"):
        Vocabulary(tmp_path)
