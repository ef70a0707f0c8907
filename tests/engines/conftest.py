from __future__ import annotations

from collections.abc import Iterator

import pytest

from engines import servers


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`subject`: every kind that is emulated, and the real ones (`make test-engines`)."""
    if "subject" in metafunc.fixturenames:
        undescribed = "what this kind documents is not in servers.TRAITS"
        kinds = [
            pytest.param(
                kind,
                id=f"emulated {kind}",
                marks=pytest.mark.skipif(
                    kind not in servers.TRAITS or kind in servers.DIFFERS,
                    reason=servers.DIFFERS.get(kind, undescribed),
                ),
            )
            for kind in servers.emulated_kinds()
        ]
        real = [pytest.param(f"real-{kind}", id=f"real {kind}", marks=pytest.mark.engines) for kind in servers.REAL]
        metafunc.parametrize("subject", [*kinds, *real], indirect=True, scope="session")


@pytest.fixture(scope="session")
def subject(request: pytest.FixtureRequest) -> Iterator[servers.Server]:
    with servers.running(request.param) as found:
        yield found
