"""Corrupted files are found and moved aside; a killed save leaves the old or the new result."""

import corrupt
import pytest
import resave


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda handle: None)  # no power is lost here


def assert_found(failures, mutations):
    assert len(failures["missed"]) <= max(mutations // 100, 1), failures["missed"]
    assert failures["raised"] == failures["hung"] == failures["lost"] == []


@pytest.mark.filterwarnings("ignore:1 of 4 points failed")
def test_corrupted_files_are_found_and_nothing_intact_is_lost(tmp_path):
    assert_found(corrupt.main(tmp_path, 60, seed=5), 60)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:1 of 4 points failed")
def test_a_thousand_corrupted_files(tmp_path):
    assert_found(corrupt.main(tmp_path, 1000, seed=6), 1000)


@pytest.mark.usefixtures("headlines_only")  # fewer figures to draw in every save
def test_kills_of_a_second_save_leave_the_old_or_the_new_result(tmp_path):
    seen = resave.main(tmp_path, 6, seed=2)
    assert sum(seen.values()) == 6


@pytest.mark.slow
def test_two_hundred_kills_of_a_second_save(tmp_path):
    assert min(resave.main(tmp_path, 200, seed=3).values()) > 10
