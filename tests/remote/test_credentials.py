"""Who may read: keys by options and profiles, and nobody's."""

from pathlib import Path

import pytest
from _bucket import uploaded
from _datasets import tensors
from _s3 import KEY, SECRET, S3Server

import shardio


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small dataset."""
    tensors(5, tmp_path / "d")
    return tmp_path / "d"


def test_a_profile_has_the_keys(s3: S3Server, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option `profile`, and $AWS_PROFILE, name a profile that boto3 reads."""
    pytest.importorskip("boto3")
    (tmp_path / "credentials").write_text(f"[tests]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    url = uploaded(s3, folder, "s3://credentials/d")
    place = {"endpoint": s3.endpoint, "region": "us-east-1"}
    found = shardio.open(url, cache=tmp_path / "c", cache_size="16MB", store_options=place | {"profile": "tests"})
    assert found.read(range(5))["label"].tolist() == [0, 1, 2, 3, 4]
    monkeypatch.setenv("AWS_PROFILE", "tests")
    assert len(shardio.open(url, cache=tmp_path / "c", cache_size="16MB", store_options=place)) == 5


def test_a_public_bucket_needs_no_keys(s3: S3Server, folder: Path, tmp_path: Path) -> None:
    """With `skip_signature` a public bucket is read without keys, and another one refuses in words."""
    options = {"endpoint": s3.endpoint, "region": "us-east-1", "skip_signature": "true"}
    url = uploaded(s3, folder, "s3://public/d")
    found = shardio.open(url, cache=tmp_path / "c", cache_size="16MB", store_options=options)
    assert found.read(range(5))["label"].tolist() == [0, 1, 2, 3, 4]
    closed = uploaded(s3, folder, "s3://credentials/closed")
    with pytest.raises(shardio.AccessDenied, match=r"s3://credentials/closed/shardio\.json: .*tried 2 times"):
        shardio.open(closed, cache=tmp_path / "c", cache_size="16MB", store_options=options)


def test_wrong_keys_and_missing_datasets_are_told_apart(s3: S3Server, folder: Path, tmp_path: Path) -> None:
    """Wrong keys are AccessDenied, and no dataset is NotADataset; neither message has the key."""
    uploaded(s3, folder, "s3://credentials/d")
    wrong = s3.options | {"secret_access_key": "not-this-one"}
    with pytest.raises(shardio.AccessDenied, match=r"s3://credentials/d/shardio\.json") as denied:
        shardio.open("s3://credentials/d", cache=tmp_path / "c", cache_size="16MB", store_options=wrong)
    assert "not-this-one" not in str(denied.value)
    with pytest.raises(shardio.NotADataset, match=r"s3://credentials/none: no shardio\.json there"):
        shardio.open("s3://credentials/none", cache=tmp_path / "c", cache_size="16MB", store_options=s3.options)
