"""A program that behaves as an engine does when it starts, and badly where told to. FAKE is a JSON object:

say: lines to print first; healthy_after: seconds until /health is 200 (503 before); listen_after: seconds until it
listens; never: listens on nothing; exit: [seconds, code]; deaf: SIGTERM is ignored; family: seconds of sleep of a
grandchild in a session of its own, its pid in the file `pids`; pids: a file that gets a line a process started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def main() -> None:
    fake = json.loads(os.environ.get("FAKE", "{}"))
    if fake.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    for line in fake.get("say", []):
        print(line, flush=True)
    mine = [os.getpid()]
    if "family" in fake:
        child = subprocess.Popen(["sleep", str(fake["family"])], start_new_session=True)
        mine.append(child.pid)
    if "pids" in fake:
        with Path(fake["pids"]).open("a") as file:
            file.write("".join(f"{pid}\n" for pid in mine))
    if "exit" in fake:
        seconds, code = fake["exit"]
        threading.Timer(seconds, os._exit, [code]).start()
    if fake.get("never"):
        threading.Event().wait()
    began = time.monotonic()
    time.sleep(fake.get("listen_after", 0.0))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            late = time.monotonic() - began < fake.get("healthy_after", 0.0)
            self.send_response(503 if late else 200)
            self.end_headers()
            self.wfile.write(json.dumps(sys.argv[1:]).encode())

        def log_message(self, *_: object) -> None:
            print(f"asked {self.path}, key {self.headers.get('authorization')}", flush=True)

    flags = dict(zip(sys.argv[1:], sys.argv[2:], strict=False))
    ThreadingHTTPServer((flags["--host"], int(flags["--port"])), Handler).serve_forever()


if __name__ == "__main__":
    main()
