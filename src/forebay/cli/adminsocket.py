"""The running admin process as commands ask it: HTTP over the Unix socket `admin.sock`, this user's alone."""

from __future__ import annotations

import http.client
import json
import socket
import sys
from pathlib import Path
from typing import Any, Final, NoReturn

from forebay.cli.main import USAGE
from forebay.errors import shown

EX_UNAVAILABLE: Final = 69
"""Exit code (sysexits.h): what the command needs cannot be used now."""
ANSWER: Final = 30.0
"""Seconds that the admin process has to answer."""


class AdminSocket:
    """`command` stands before what is said of a failure, which ends the process."""

    def __init__(self, path: Path, command: str) -> None:
        self.path = path
        self._command = command

    def answers(self) -> bool:
        """False where no admin process listens."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(ANSWER)
            try:
                sock.connect(str(self.path))
            except PermissionError:
                self.fail(
                    f"{self.path} belongs to another user; run this as the user of `forebay serve`", EX_UNAVAILABLE
                )
            except OSError:
                return False
        return True

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """The answer's object. Ends the process where there is none, or a refusal: 2 for what was asked wrongly, 1 for
        what does not exist, 69 else."""
        connection = _UnixConnection(self.path)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            answer: dict[str, Any] = json.loads(response.read())
        except (OSError, ValueError, http.client.HTTPException) as e:
            doubt = f"; look with `{self._command} list` whether the change was made" if method != "GET" else ""
            self.fail(
                f"the admin process did not answer on {self.path}: {shown(e) or type(e).__name__}{doubt}",
                EX_UNAVAILABLE,
            )
        finally:
            connection.close()
        if response.status >= 300:
            code = {400: USAGE, 404: 1, 409: 1}.get(response.status, EX_UNAVAILABLE)
            self.fail(str(answer["error"]["message"]), code)
        return answer

    def fail(self, message: str, code: int) -> NoReturn:
        print(f"{self._command}: {message}", file=sys.stderr)
        sys.exit(code)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=ANSWER)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(ANSWER)
        self.sock.connect(str(self._path))
