"""GET /admin/admission over real sockets, of workers that say what a test wants."""

from __future__ import annotations

from pathlib import Path

from admin_process import Admin, FakeWorker
from forebay.state.messages import AdmissionState, EngineAdmission, Margin, ModelAdmission, ShedChange, Waiting
from waiting import eventually

ENGINE = EngineAdmission(
    name="one",
    shed_level=0.25,
    reason="shed_preempting",
    kv_predicted=0.5,
    kv_tokens=1_000,
    ceilings={"vip": 0.97, "normal": 0.92, "low": 0.75},
    in_flight=3,
    cap=8,
    scale_factor=None,
    load=0.5,
    pace=1.0,
    prefill_rate=8_000.0,
    prefill_ahead=12.0,
    margins={"idle": Margin(2.0, 17)},
    history=(ShedChange(1_700_000_000.25, 0.25, "shed_preempting"),),
)
WAITING = {"vip": Waiting(0, 0), "normal": Waiting(2, 300), "low": Waiting(1, 50)}


def test_what_a_worker_says_is_shown(admin: Admin, worker: FakeWorker) -> None:
    worker.admission = AdmissionState(
        (ModelAdmission("m", 3, 2.25, WAITING), ModelAdmission("n", 1, 0.0, {})), (ENGINE,)
    )
    admin.start()
    eventually(lambda: admin.metric('forebay_worker_up{worker="0"}') == 1)
    answer = admin.get("/admin/admission")
    assert answer.status == 200
    page = answer.json
    assert page["time"].endswith("Z")
    assert page["enabled"] is True
    assert page["waiting"] == {
        "vip": {"requests": 0, "tokens": 0},
        "normal": {"requests": 2, "tokens": 300},
        "low": {"requests": 1, "tokens": 50},
    }
    assert [(m["name"], m["desired_replicas"], m["demand"]) for m in page["models"]] == [("m", 3, 2.25), ("n", 1, 0.0)]
    assert page["models"][0]["waiting"] == page["waiting"]
    (one,) = page["workers"]
    assert (one["worker"], one["up"], one["enabled"]) == (0, True, True)
    (engine,) = one["engines"]
    assert engine["history"] == [{"time": "2023-11-14T22:13:20.250Z", "level": 0.25, "reason": "shed_preempting"}]
    assert engine["margins"] == {"idle": {"margin": 2.0, "seen": 17}}
    assert engine["ceilings"]["normal"] == 0.92
    assert engine["scale_factor"] is None


def test_a_worker_without_admission_or_that_is_gone_says_so(admin: Admin, state_dir: Path) -> None:
    worker = FakeWorker(state_dir)
    admin.start()
    eventually(lambda: admin.metric('forebay_worker_up{worker="0"}') == 1)
    page = admin.get("/admin/admission").json
    assert (page["enabled"], page["models"]) == (False, [])
    assert page["workers"] == [{"worker": 0, "up": True, "enabled": False}]
    worker.answering.clear()
    page = admin.get("/admin/admission").json
    assert page["workers"] == [{"worker": 0, "up": False, "why": "no answer within 1 s"}]
    worker.kill()
    page = admin.get("/admin/admission").json
    assert page["workers"] == [{"worker": 0, "up": False, "why": "it does not run"}]


def test_a_page_of_another_site_cannot_read_it(running: Admin) -> None:
    assert running.get("/admin/admission", host="evil.example").status == 403
