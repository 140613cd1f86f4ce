"""The journal: what is written is there after a death at any point, and the file does not grow for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from local.serving import journal as journals
from local.serving.journal import Journal, JournalInUseError


def contents(path: Path) -> dict[str, bytes]:
    journal = Journal(path)
    found = dict(journal.items(""))
    journal.close()
    return found


def test_puts_and_drops_are_found_again(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "a.journal"
    journal = Journal(path)
    journal.write([("t/ü", b"1"), ("t/b", b""), ("s/c", bytes(range(256)))])
    journal.write([("t/ü", b"2")], ["t/b", "t/never"])
    assert dict(journal.items("t/")) == {"t/ü": b"2"}
    journal.close()
    assert contents(path) == {"t/ü": b"2", "s/c": bytes(range(256))}


def test_torn_tail_is_cut_off_at_every_length(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    journal = Journal(path)
    journal.write([("first", b"whole")])
    whole = path.stat().st_size
    journal.write([("second", b"torn")])
    journal.close()
    data = path.read_bytes()
    for length in range(whole, len(data)):
        path.write_bytes(data[:length])
        assert contents(path) == {"first": b"whole"}
        assert path.stat().st_size == whole
    path.write_bytes(data[:-1] + b"?")
    assert contents(path) == {"first": b"whole"}


def test_writing_goes_on_after_a_torn_tail(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    path.write_bytes(b"half a rec")
    journal = Journal(path)
    journal.write([("key", b"value")])
    journal.close()
    assert contents(path) == {"key": b"value"}


def test_second_opening_is_refused_until_the_first_closes(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a.journal")
    with pytest.raises(JournalInUseError):
        Journal(tmp_path / "a.journal")
    journal.close()
    Journal(tmp_path / "a.journal").close()


def test_dead_records_are_compacted_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "COMPACT_ABOVE", 10_000)
    path = tmp_path / "a.journal"
    journal = Journal(path)
    journal.write([("kept", b"k" * 100)])
    for number in range(1000):
        journal.write([(f"message/{number}", b"x" * 100)])
        journal.write(drops=[f"message/{number}"])
    assert path.stat().st_size < 20_000
    journal.write([("last", b"l")])
    journal.close()
    assert contents(path) == {"kept": b"k" * 100, "last": b"l"}


def test_without_a_path_it_lives_in_memory() -> None:
    journal = Journal(None)
    journal.write([("a", b"1")])
    journal.write([("b", b"2")], ["a"])
    assert dict(journal.items("")) == {"b": b"2"}
    journal.close()
