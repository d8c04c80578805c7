"""`--manifest` of every command that opens files, and a policy that demands a manifest."""

import errno
import json
import os
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from web_server import Server

import rustload
from rustload._cli import main
from rustload._cli.command import OPENING


def _model(folder: Path) -> tuple[Path, Path]:
    folder.mkdir()
    path = folder / "m.bin"
    torch.save({"a": torch.ones(1000), "b": torch.arange(5)}, path)
    manifest = folder.parent / "manifest.json"
    manifest.write_text(rustload.Manifest.of(folder, piece=256).to_json())
    return path, manifest


ARGUMENTS = {
    "show": ["a"],
    "view": ["--stats", "full", "--force", "-o"],
    "diff": [],
    "convert": ["--overwrite"],
}


@pytest.mark.parametrize("command", sorted(OPENING))
def test_commands_that_open_read_as_a_manifest_lists(command, tmp_path):
    path, manifest = _model(tmp_path / "m")
    more = [*ARGUMENTS.get(command, [])]
    if command in ("view", "convert"):
        more.append(str(tmp_path / ("out.html" if command == "view" else "out.safetensors")))
    if command == "diff":
        more = [str(path), "--data"]
    run = [command, str(path), *more, "--manifest", str(manifest)]
    if command == "convert":
        run = [command, str(path), more[-1], more[0], "--manifest", str(manifest)]
    assert main(run) == 0
    content = bytearray(path.read_bytes())
    for at in (1, len(content) // 2, len(content) - 1):
        bad = bytearray(content)
        bad[at] ^= 1
        path.write_bytes(bad)
        # A scan reads no tensors.
        assert main(run) in (
            (0, 1) if command == "scan" else (0, 3) if command in ("info", "show") else (3,)
        ), at
    path.write_bytes(content)
    manifest.write_text(rustload.Manifest.of(path).to_json().replace("m.bin", "other"))
    assert main(run) == (1 if command == "scan" else 3)
    manifest.write_text("{}")
    assert main(run) == (2 if command == "scan" else 3)


def test_a_policy_demands_what_a_manifest_lists(tmp_path):
    path, manifest = _model(tmp_path / "m")
    policy = rustload.Policy(manifest=manifest)
    report = rustload.scan(path.parent, policy=policy)
    assert report.passes
    assert json.loads(report.to_json())["policy"]["manifest"] == str(manifest)
    new = path.parent / "new.bin"
    new.write_bytes(path.read_bytes())
    assert rustload.scan(path.parent).passes
    report = rustload.scan(path.parent, policy=policy)
    assert not report.passes
    (found,) = [file for file in report.files if file.path == str(new)]
    assert (found.status, found.findings[0].code) == ("unreadable", "ManifestMissing")
    file = tmp_path / "policy.toml"
    file.write_text('manifest = "manifest.json"\n')
    assert main(["scan", str(path.parent), "--policy", str(file)]) == 1
    new.unlink()
    assert main(["scan", str(path.parent), "--policy", str(file)]) == 0
    content = path.read_bytes()
    for at in (0, 100, len(content) - 3):
        bad = bytearray(content)
        bad[at] ^= 1
        path.write_bytes(bad)
        assert main(["scan", str(path), "--policy", str(file)]) == 1, at
    file.write_text("manifest = 5\n")
    assert main(["scan", str(path), "--policy", str(file)]) == 2
    with pytest.raises(ValueError, match="manifest="):
        rustload.scan(b"N.", policy=policy)


@pytest.mark.parametrize("form", ["sums", "pieces"])
def test_a_manifest_in_the_folder_that_is_scanned_is_left_out(form, tmp_path, capsys):
    path, _ = _model(tmp_path / "m")
    (path.parent / "sub").mkdir()
    (path.parent / "sub" / "config.json").write_text("{}")
    own = path.parent / "SHA256SUMS"
    if form == "sums":
        names = ("m.bin", "sub/config.json")
        own.write_text(
            "".join(f"{sha256((path.parent / name).read_bytes()).hexdigest()}  {name}\n" for name in names)
        )
    else:
        own.write_text(rustload.Manifest.of(path.parent).to_json())
        # Of what has no bytes there is no digest.
        (path.parent / "empty.txt").touch()
    policy = rustload.Policy(manifest=own)
    report = rustload.scan(path.parent, policy=policy)
    assert (report.passes, "SHA256SUMS" in str(report)) == (True, False), str(report)
    assert main(["scan", str(path.parent), "--manifest", str(own)]) == 0
    # Another file of that name, and a link to it, are scanned.
    (path.parent / "sub" / "SHA256SUMS").write_bytes(own.read_bytes())
    (path.parent / "link.bin").symlink_to(own)
    failed = {file.path for file in rustload.scan(path.parent, policy=policy).files if not file.passes}
    assert failed == {str(path.parent / "sub" / "SHA256SUMS"), str(path.parent / "link.bin")}
    capsys.readouterr()


def test_sums_from_another_folder_are_said_to_be_so(tmp_path, capsys):
    path, manifest = _model(tmp_path / "m")
    manifest.write_text(f"{sha256(path.read_bytes()).hexdigest()}  m/m.bin\n")
    for command in ("scan", "info", "verify"):
        assert main([command, str(path), "--manifest", str(manifest)]) in (1, 3)
        printed = " ".join("".join(capsys.readouterr()).split())
        assert "does not list" in printed, command
        assert (
            'it lists "m/m.bin", and names are those of files in the folder that is read'
            in printed.replace("'", '"')
        )
    assert main(["verify", str(tmp_path), "--manifest", str(manifest)]) == 0


def test_a_file_or_a_folder_in_a_store_is_verified(tmp_path, capsys, monkeypatch):
    pytest.importorskip("urllib3")
    memory = pytest.importorskip("fsspec").filesystem("memory")
    monkeypatch.setenv("RUSTLOAD_REMOTE", "http,memory")
    path, manifest = _model(tmp_path / "m")
    (path.parent / "sub").mkdir()
    (path.parent / "sub" / "a b.bin").write_bytes(bytes(3000))
    manifest.write_text(rustload.Manifest.of(path.parent, piece=1024).to_json())
    files = {"m.bin": path.read_bytes(), "sub/a b.bin": bytes(3000)}
    server = Server(files)
    changed = bytes(2000) + b"!" + bytes(999)

    def verified(url: str) -> tuple[int, str]:
        code = main(["verify", url, "--manifest", str(manifest)])
        return code, "".join(capsys.readouterr())

    try:
        for name, content in files.items():
            memory.pipe(f"/verified/{name}", content)
        for url in (f"{server.host}/", "memory://verified"):
            assert verified(url) == (0, "2 listed files: no difference\n")
        for url in (f"{server.host}/m.bin", "memory://verified/m.bin", str(path)):
            assert verified(url) == (0, "1 listed file: no difference\n")
        server.files["sub/a b.bin"] = changed
        memory.pipe("/verified/sub/a b.bin", changed)
        for url in (f"{server.host}/", "memory://verified"):
            assert verified(url) == (1, "sub/a b.bin: differs somewhere in bytes 1024 to 2048\n")
        del server.files["m.bin"]
        assert "m.bin: missing\n" in verified(f"{server.host}/")[1]
        for command in (["verify", str(path), "--manifest"], ["info", str(path), "--manifest"]):
            assert main([*command, f"{server.host}/manifest.json"]) in (2, 3)
            assert "a manifest is a file, not a URL" in capsys.readouterr().err
        assert main(["manifest", f"{server.host}/m.bin"]) == 3
        assert "only files on disk are hashed: download it" in capsys.readouterr().err
    finally:
        server.close()
        memory.rm("/verified", recursive=True)


@pytest.mark.parametrize("command", sorted(OPENING))
def test_a_file_at_a_signed_url_is_read_as_a_manifest_lists(command, tmp_path, monkeypatch):
    pytest.importorskip("urllib3")
    monkeypatch.setenv("RUSTLOAD_REMOTE", "http")
    path, manifest = _model(tmp_path / "m")
    server = Server({"m é.bin": path.read_bytes()})
    server.fault = lambda number: None if "sig=1" in server.requests[number].path else "403"
    url = f"{server.host}/m%20%C3%A9.bin?sig=1"
    more = {
        "show": ["a"],
        "view": ["-o", str(tmp_path / "v.html")],
        "diff": [url, "--data"],
        "convert": [str(tmp_path / "o.safetensors")],
    }
    try:
        for listed, code in (("m é.bin", 0), ("other", 1 if command == "scan" else 3)):
            manifest.write_text(
                rustload.Manifest.of(path).to_json().replace('"m.bin', f'"{listed}'), encoding="utf-8"
            )
            assert main([command, url, *more.get(command, []), "--manifest", str(manifest)]) == code
    finally:
        server.close()


def test_an_existing_manifest_is_replaced_on_demand(tmp_path, capsys):
    path, manifest = _model(tmp_path / "m")
    arguments = ["manifest", str(path.parent), "-o", str(manifest)]
    assert main(arguments) == 3
    assert "Pass --overwrite to replace it" in capsys.readouterr().err
    manifest.write_text("old")
    assert main([*arguments, "--overwrite"]) == 0
    assert json.loads(manifest.read_text())


@pytest.mark.parametrize(
    ("name", "why"), [("a\nb.bin", "a line break"), ("sur\udcff.bin", "it is not UTF-8")]
)
def test_a_name_that_a_manifest_cannot_have_is_to_be_changed(name, why, tmp_path, capsys):
    (tmp_path / name).write_bytes(b"content")
    assert main(["manifest", str(tmp_path)]) == 3
    error = capsys.readouterr().err
    assert "a manifest cannot list" in error
    assert why in error
    assert "Rename the file." in error


def test_a_folder_whose_own_name_is_not_utf_8_has_a_manifest(tmp_path, capsys):
    folder = tmp_path / os.fsdecode(b"\xff\xfe")
    _model(folder)
    assert main(["manifest", str(folder)]) == 0
    (tmp_path / "m.json").write_text(capsys.readouterr().out)
    assert json.loads((tmp_path / "m.json").read_text())["subject"][0]["name"] == "\ufffd\ufffd"
    assert main(["verify", str(folder), "--manifest", str(tmp_path / "m.json")]) == 0


def test_a_manifest_in_the_folder_is_replaced_and_does_not_list_itself(tmp_path, capsys):
    folder = _model(tmp_path / "m")[0].parent
    arguments = ["manifest", str(folder), "-o", str(folder / "m.json"), "--overwrite"]
    assert (main(arguments), main(arguments)) == (0, 0)
    assert list(rustload.Manifest(folder / "m.json").files) == ["m.bin"]
    assert main(["verify", str(folder), "--manifest", str(folder / "m.json")]) == 0
    assert "not listed: m.json" in capsys.readouterr().out


def test_a_folder_that_cannot_be_read_is_not_left_out(tmp_path, capsys, monkeypatch):
    (path, manifest), scandir = _model(tmp_path / "m"), os.scandir
    (path.parent / "below").mkdir()

    def refused(folder):
        if str(folder).endswith("below"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refused)  # root may read any
    assert main(["manifest", str(path.parent)]) == 3
    assert main(["verify", str(path.parent), "--manifest", str(manifest)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count(f"{path.parent / 'below'}: permission denied")) == ("", 2)
