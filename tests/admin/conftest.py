from __future__ import annotations

from admin_process import admin, config, running, state_dir, worker

__all__ = ["admin", "config", "running", "state_dir", "worker"]
