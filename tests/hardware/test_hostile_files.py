"""Files that are no files, have no end, or nest without one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.hardware import bundle, configs, csvtable, files, fitted
from forebay.hardware.aiconf import read_document
from forebay.hardware.bundle import read_meta
from forebay.hardware.configs import BadConfig, from_config
from forebay.hardware.csvtable import BadProfile, read_curves
from forebay.hardware.fitted import FittedError
from forebay.hardware.profiles import resolve

Reader = Callable[[Path], object]
ERRORS = (BadProfile, BadConfig, FittedError)


def curves(path: Path) -> object:
    return read_curves(path, "layer", "tokens", "time_us")


READERS: list[tuple[str, Reader]] = [
    ("tokens.csv", curves),
    ("compiled.json", read_document),
    ("config.json", from_config),
    ("fitted.yaml", fitted.read),
    ("meta.yaml", lambda path: read_meta(path.parent)),
]


@pytest.mark.parametrize(("name", "reader"), READERS)
@pytest.mark.timeout(10)
def test_pipes_devices_and_folders_are_refused_at_once(tmp_path: Path, name: str, reader: Reader) -> None:
    path = tmp_path / name
    os.mkfifo(path)
    with pytest.raises(ERRORS, match=f"{name}: cannot be read: is a pipe or a device"):
        reader(path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(ERRORS, match=f"{name}: cannot be read: is a pipe or a device"):
        reader(path)


@pytest.mark.parametrize(("name", "reader"), READERS)
def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, name: str, reader: Reader) -> None:
    path = tmp_path / name
    with path.open("wb") as file:
        file.truncate(files.MAX_BYTES + 1)
    with pytest.raises(ERRORS, match=r"268,435,457 bytes, more than"):
        reader(path)


@pytest.mark.parametrize(("name", "reader"), READERS[1:])
def test_what_nests_without_end_is_said(tmp_path: Path, name: str, reader: Reader) -> None:
    path = tmp_path / name
    for text in ("[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000):
        path.write_text(text)
        with pytest.raises(ERRORS, match=f"{name}.*: "):
            reader(path)


@pytest.mark.parametrize(
    ("meta", "says"),
    [
        ("skew_fit: [1]\n", "skew_fit holds list where keys are needed"),
        ("engine_effective: true\n", "engine_effective holds bool where keys are needed"),
        ("when: 2024-99-99\n", "is not YAML"),
    ],
)
def test_meta_that_is_of_another_kind(make_bundle: Callable[..., Path], meta: str, says: str) -> None:
    from hardware_bundles import META

    kept = META.partition("skew_fit")[0]
    with pytest.raises(BadProfile, match=rf"meta\.yaml: {says}"):
        resolve(profile=make_bundle(meta=kept + meta))


@pytest.mark.parametrize("cell", ["1e300", "1e10"])
def test_a_kernel_takes_no_longer_than_is_believable(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "dense.csv"
    path.write_text(f"layer,tokens,time_us\nqkv,1,5\nqkv,2,{cell}\n")
    with pytest.raises(BadProfile, match=r"line 3: time_us is .* where at most 1,000,000,000 is believable"):
        curves(path)
    path.write_text("layer,tokens,time_us\nqkv,1e300,5\n")
    with pytest.raises(BadProfile, match=r"line 2: tokens is 1e300 where at most"):
        curves(path)


def test_the_bounds_are_over_what_such_files_have() -> None:
    assert csvtable.MAX_US * 1e-6 == 1000
    assert bundle._MAX_META < configs._MAX_CONFIG < files.MAX_BYTES
