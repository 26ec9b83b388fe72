"""The key of a run, and its file."""

from __future__ import annotations

import os
import ssl

import pytest

from placer.channel.keys import RunKey, find_key, new_key, pass_key, read_key, write_key
from placer.channel.tls import Identities, _certificate
from placer.errors import PlacerError


def test_a_key_is_written_for_its_owner_only_and_read_again(tmp_path, monkeypatch):
    key = new_key()
    write_key(tmp_path / "run.key", key)
    assert (tmp_path / "run.key").stat().st_mode & 0o777 == 0o600
    assert read_key(tmp_path / "run.key") == key
    monkeypatch.setenv("PLACER_KEY_FILE", str(tmp_path / "run.key"))
    assert find_key(None) == key
    monkeypatch.delenv("PLACER_KEY_FILE")
    assert find_key(None) is None


def test_a_key_that_exists_is_not_overwritten(tmp_path):
    write_key(tmp_path / "run.key", new_key())
    with pytest.raises(PlacerError, match=r"cannot write the key .*: File exists"):
        write_key(tmp_path / "run.key", new_key())


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o622])
def test_a_key_that_other_users_can_use_is_refused(tmp_path, mode):
    path = tmp_path / "run.key"
    write_key(path, new_key())
    path.chmod(mode)
    with pytest.raises(PlacerError, match="other users can read the key") as raised:
        read_key(path)
    assert raised.value.hint == f"run `chmod 600 {path}`"


@pytest.mark.parametrize("text", ["", "secret", "ab" * 31, "ab" * 33, "é" * 32])
def test_a_file_without_32_bytes_is_no_key(tmp_path, text):
    path = tmp_path / "run.key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(PlacerError, match="is not a key"):
        read_key(path)


def test_a_missing_key_and_a_folder_are_errors(tmp_path):
    with pytest.raises(PlacerError, match=r"cannot read the key .*: No such file"):
        read_key(tmp_path / "none")
    with pytest.raises(PlacerError):
        read_key(tmp_path)


def test_the_secret_is_not_shown():
    key = RunKey(b"\x5a" * 32)
    assert "5a" not in repr(key)
    assert "ZZ" not in repr(key)


def test_a_key_is_passed_to_a_child_without_a_file():
    key = new_key()
    fd = pass_key(key)
    try:
        assert read_key(f"/proc/self/fd/{fd}") == key
    finally:
        os.close(fd)


def test_bytes_for_each_purpose_and_node_differ_and_are_those_of_rfc_5869():
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    key = RunKey(bytes(range(32)))
    drawn = {
        (label, node): key.derive(label, node)
        for label in ("tls", "hello", "job")
        for node in ("", "a:0", "b:0")
    }
    assert len(set(drawn.values())) == len(drawn)
    info = b"placer tls 1\x00a:0"
    assert drawn["tls", "a:0"] == HKDF(SHA256(), 32, None, info).derive(key.secret)


def test_a_certificate_is_the_same_wherever_it_is_made():
    key = new_key()
    assert _certificate(key, "a:0") == _certificate(key, "a:0")
    assert _certificate(key, "a:0") != _certificate(new_key(), "a:0")


def test_both_sides_use_tls_1_3_with_certificates_and_no_tickets():
    identities = Identities(new_key(), "a:0", ["b:0"])
    for context in (identities.client, identities.server):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert not context.check_hostname
    assert identities.server.num_tickets == 0
