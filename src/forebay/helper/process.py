"""The helper process as a whole.

Theory of operation. One event loop for the sockets, which computes nothing. One thread for look-ups: it takes what
has come together, answers equal requests from the store, and embeds and compares the rest in one go. One thread for
chores, in order: answers to be kept, purges, feedback, questions of people; in between it opens what is configured,
fills the index, removes what is over, saves. It does them in pieces of a millisecond or two, and lets look-ups pass
before each. One more listens to the other hosts of a shared store.

A look-up that cannot be done in its budget is answered as a miss at once: where the line is full, where its time is up
when its turn comes, where nothing is open yet. Answers to be kept wait in a line bounded in bytes; past that they are
not kept. End of file on the channel or SIGTERM ends it, after what waits was kept.

What was found before a purge and would be sent after it is not sent (`_epoch`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from random import SystemRandom
from types import MappingProxyType
from typing import Final, NamedTuple

from forebay.cache.messages import (
    Answered,
    Drop,
    Failed,
    Feedback,
    Find,
    Found,
    Heard,
    Kind,
    Look,
    Purge,
    Purged,
    Said,
    Seen,
    Store,
    Unanswered,
    cache_socket,
)
from forebay.cache.semantic.embedder import Embedder, EmbedderMissing, EmbedderUnavailable
from forebay.cache.semantic.index import IndexUnavailable
from forebay.cache.semantic.judge import Judged
from forebay.cache.semantic.verifier import VerifierError
from forebay.cache.stores.store import StoreError, StoreGone
from forebay.clock import Clock
from forebay.config.models import Config
from forebay.helper.asking import ModelJudge
from forebay.helper.building import (
    counts_file,
    embedder_of,
    learned_file,
    open_meaning,
    open_store,
    same_embedder,
    save_position,
    written,
)
from forebay.helper.counts import Counts
from forebay.helper.garbage import Garbage
from forebay.helper.lanes import Lane
from forebay.helper.peers import Connection, Peers, packed
from forebay.helper.service import CannotDo, Service

log = logging.getLogger("forebay.cache")

MOST_FINDS: Final = 512
"""Look-ups that wait; one more is a miss."""
BATCH: Final = 8
"""Look-ups that are embedded together: more at once would keep the first ones waiting."""
MOST_CHORES: Final = 8_192
CHORE_BYTES: Final = 256 << 20
SAVE: Final = 60.0
"""Seconds between saves of the index and of what was learned."""
AGAIN: Final = (1.0, 30.0)
"""Seconds until what could not be opened is tried again: doubled each time."""
LEAVE: Final = (0.5, 5.0)
"""Seconds for look-ups, and for chores, that wait when it is told to leave."""
GATHER: Final = 0.1
"""Seconds from one writing of answers to the next: those that come meanwhile are written at once, since a transaction,
and waking a thread, cost more than what is in it. What a crash loses of them are misses."""
TOGETHER: Final = 64
"""Answers that are not waited for any longer."""
LET_PASS: Final = 0.01
"""Seconds that a piece of a chore waits for look-ups at most: both share a core, and the chores must get done, too."""
HANGS: Final = MappingProxyType({"look-ups": 30.0, "chores": 900.0})
"""Seconds of one piece of work, of look-ups and of chores, after which it is taken to hang: a loop without an end, a
disk that does not answer. Chores read an index of a million questions, or load a model, in one."""


class _Waiting(NamedTuple):
    connection: Connection
    find: Find
    deadline: float
    epoch: int


class _Judged(NamedTuple):
    """What a model said of a ticket."""

    ticket: int
    judged: Judged | None


class _Chore(NamedTuple):
    connection: Connection | None
    said: Said | Config | _Judged


class Helper:
    """Mutable state: the service, where one is open, and when opening what is not is tried again. `_using` is held
    while look-ups use the service, and while it is taken away."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self._garbage = Garbage(clock)
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._peers = Peers(self._heard)
        self._lookups: Lane[_Waiting] = Lane("lookups", self._find, batch=BATCH, most=MOST_FINDS)
        self._chores: Lane[_Chore] = Lane(
            "chores",
            self._do,
            batch=TOGETHER,
            most=MOST_CHORES,
            most_bytes=CHORE_BYTES,
            idle=self._between,
            gather=GATHER,
        )
        self._service: Service | None = None
        self._using = threading.Lock()
        self._embedder: Embedder | None = None
        self._counts = Counts()
        self._epoch = 0
        self._open_at, self._again = 0.0, AGAIN[0]
        self._save_at = clock.now() + SAVE
        self._said = ""
        self._leaving = threading.Event()
        self._other_hosts: threading.Thread | None = None
        self.opened = asyncio.Event()
        """What is configured was opened, or tried to."""

    async def start(self) -> None:
        """Raises CannotListen."""
        self._load_counts()
        await self._peers.listen(cache_socket(self._config.state_dir))
        self._lookups.start()
        self._chores.start()

    def clean_up(self) -> None:
        """What lives now is not looked at again."""
        self._garbage.everything()

    def hangs(self) -> str:
        """What a thread has been at for too long; "": none."""
        spent = {"look-ups": self._lookups.at_it(), "chores": self._chores.at_it()}
        late = [name for name, most in HANGS.items() if spent[name] > most]
        return f"its {late[0]} stand still for {spent[late[0]]:.0f} s" if late else ""

    def reload(self, config: Config) -> None:
        self._chores.put(_Chore(None, config), anyway=True)

    async def close(self) -> None:
        self._peers.stop()
        await asyncio.to_thread(self._lookups.close, LEAVE[0])
        done = await asyncio.to_thread(self._chores.close, LEAVE[1])
        if not done:
            log.warning("%d answers and other chores that waited are not done", len(self._chores))
            self._chores.drop()
            done = await asyncio.to_thread(self._chores.close, LEAVE[0])
        self._leaving.set()
        if done:
            await asyncio.to_thread(self._end)
        else:
            log.error("a store or an index hangs, and is left behind: what was learned lately is lost")
        self._peers.close()

    def _end(self) -> None:
        self._save()
        self._close_service()
        if self._embedder is not None:
            self._embedder.close()

    # --- on the loop -------------------------------------------------------------------------------------------------

    def _heard(self, connection: Connection, said: Said, size: int) -> None:
        if isinstance(said, Find):
            service = self._service
            if service is None:
                connection.send(packed(Found(said.n, Kind.MISS, why="closed")))
                return
            if (missed := service.nothing(said)) is not None:
                connection.send(packed(missed))
                return
            waiting = _Waiting(connection, said, self._clock.now() + said.budget, self._epoch)
            if not self._lookups.put(waiting):
                missed = Found(said.n, Kind.MISS, why="busy")
                service.counts.found(said.partition, missed)
                connection.send(packed(missed))
        elif isinstance(said, Store | Unanswered):
            self._chores.put(_Chore(connection, said), size, patient=True)
        elif not self._chores.put(_Chore(connection, said), size):
            connection.send(packed(Failed(said.n, "the cache's helper has too much to do; try again")))

    def _send(self, answers: Sequence[tuple[Connection, Answered, int]]) -> None:
        """`int`: the epoch in which it was asked for."""
        for connection, some in groupby(answers, itemgetter(0)):
            frames = []
            for _, answer, epoch in some:
                if isinstance(answer, Found) and answer.answer and epoch != self._epoch:
                    answer = Found(answer.n, Kind.MISS, why="purged", seconds=answer.seconds)
                frames.append(packed(answer))
            connection.send(frames[0] if len(frames) == 1 else b"".join(frames))

    def _found(self, answers: Sequence[tuple[Connection, Answered, int]]) -> None:
        """Of look-ups."""
        self._send(answers)
        self._loop.call_soon(self._collect)  # in the loop's next round: what was sent has left then

    def _collect(self) -> None:
        self._garbage.asked(busy=len(self._lookups) > 0 or self._lookups.at_it() > 0)

    def _tell(self, drop: Drop) -> None:
        self._epoch += 1
        self._peers.publish(drop)

    def _publish(self, drop: Drop) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._tell, drop)

    # --- look-ups ----------------------------------------------------------------------------------------------------

    def _find(self, waiting: list[_Waiting]) -> None:
        finds = [one.find for one in waiting]
        with self._using:
            service = self._service
            try:
                if service is None:
                    found = [Found(find.n, Kind.MISS, why="closed") for find in finds]
                else:
                    found = service.find(finds, [one.deadline for one in waiting])
            except Exception:
                log.exception("a look-up failed, which is a miss")
                found = [Found(find.n, Kind.MISS, why="failed") for find in finds]
        answers = [(one.connection, answer, one.epoch) for one, answer in zip(waiting, found, strict=True)]
        self._loop.call_soon_threadsafe(self._found, answers)

    # --- chores ------------------------------------------------------------------------------------------------------

    def _do(self, chores: list[_Chore]) -> None:
        if self._service is not None:
            self._service.ahead([chore.said for chore in chores if isinstance(chore.said, Store)])
        for storing, group in groupby(chores, lambda chore: isinstance(chore.said, Store)):
            self._do_in_order(list(group), together=storing)

    def _do_in_order(self, chores: list[_Chore], *, together: bool) -> None:
        if together and len(chores) > 1 and self._service is not None:
            begun = False
            try:
                with self._service.store.together():
                    begun = True
                    self._do_in_order(chores, together=False)
            except StoreGone as e:
                log.debug("%d answers may not be kept: %s", len(chores), e)
                if not begun:
                    self._do_in_order(chores, together=False)
            return
        for connection, said in chores:
            self._let_pass()
            try:
                answer = self._answer(said)
            except Exception as e:
                log.exception("%s failed", type(said).__name__)
                answer = Failed(getattr(said, "n", 0), f"{type(e).__name__}: {e}")
            if connection is not None and answer is not None and not isinstance(said, Store | Unanswered):
                self._loop.call_soon_threadsafe(self._send, [(connection, answer, 0)])
            self._garbage.little()

    def _answer(self, said: Said | Config | _Judged) -> Answered | None:
        if isinstance(said, Config):
            self._apply(said)
            return None
        service = self._service
        if service is None:
            return Failed(getattr(said, "n", 0), self._said or "the cache's helper has just been started; try again")
        try:
            match said:
                case _Judged(ticket, judged):
                    service.learn(ticket, judged)
                case Store():
                    service.keep(said)
                case Unanswered():
                    service.give_up(said)
                case Purge():
                    return Purged(said.n, service.purge(said))
                case Feedback():
                    return Heard(said.n, service.feedback(said))
                case Look():
                    return Seen(said.n, service.look(said))
        except CannotDo as e:
            return Failed(said.n, str(e)) if isinstance(said, Purge | Feedback | Look) else None
        return None

    def _let_pass(self) -> None:
        self._lookups.let_pass(LET_PASS)

    def _between(self) -> float:
        """With nothing to do; seconds until there is something."""
        now = self._clock.now()
        if self._unopened() and now >= self._open_at:
            self._open()
            self._loop.call_soon_threadsafe(self.opened.set)
        if now >= self._save_at:
            self._save_at = now + SAVE
            self._save()
        self._garbage.little()
        self._garbage.whole()
        wait = self._service.chore() if self._service is not None else AGAIN[1]
        if self._unopened():
            wait = min(wait, max(0.05, self._open_at - self._clock.now()))
        return wait

    # --- what is open ------------------------------------------------------------------------------------------------

    def _unopened(self) -> bool:
        service = self._service
        return self._config.cache.enabled and (
            service is None or (service.meaning is None and self._config.cache.semantic.enabled)
        )

    def _open(self) -> None:
        """What is not open yet; tried again later where that may help, else at the next reload."""
        later: float | None = None
        try:
            self._open_all()
            self._said, self._again = "", AGAIN[0]
            return
        except (StoreError, EmbedderUnavailable, IndexUnavailable, OSError) as e:
            problem, later = str(e), self._again
            self._again = min(AGAIN[1], 2 * self._again)
        except (EmbedderMissing, VerifierError) as e:
            problem = str(e)
        except ImportError as e:
            problem = f"{e.name or e} is not installed: pip install 'forebay[semantic]'"
        if problem != self._said:
            log.error("%s", problem)
        self._said = problem
        if self._service is not None:
            self._service.state = problem
        self._open_at = self._clock.now() + later if later is not None else float("inf")

    def _open_all(self) -> None:
        config = self._config
        service = self._service
        if service is None:
            store = open_store(config, self._clock)
            service = Service(config.cache, store, self._publish, self._clock, self._counts, queues=self._queues)
            self._service = service
            if store.name != "disk":
                self._leaving = threading.Event()
                self._other_hosts = threading.Thread(
                    target=self._listen, args=(service, self._leaving), name="other-hosts", daemon=True
                )
                self._other_hosts.start()
        if config.cache.semantic.enabled and service.meaning is None:
            service.state = "opening"
            if self._embedder is None:
                self._embedder = embedder_of(config)
            meaning = open_meaning(config, self._embedder, service.store, self._clock, SystemRandom())
            meaning.let_pass = self._let_pass
            service.meaning = meaning
            service.state = "ready"
            if config.cache.semantic.judge is not None and service.asks is None:
                service.asks = ModelJudge(config, self._judged)
            log.info("questions are compared by %s; %d are known", self._embedder.id, len(service.meaning.index))

    def _judged(self, ticket: int, judged: Judged | None) -> None:
        """From the model's thread."""
        self._chores.put(_Chore(None, _Judged(ticket, judged)))

    def _listen(self, service: Service, leaving: threading.Event) -> None:
        while not leaving.is_set():
            try:
                service.others(1.0)
            except StoreError as e:
                log.debug("other hosts are not heard: %s", e)
                leaving.wait(1.0)
            except Exception:
                log.exception("other hosts are not heard")
                leaving.wait(5.0)

    def _apply(self, config: Config) -> None:
        """A new configuration. What is open of the old one is closed where it differs; the embedder, where it is the
        same, stays."""
        old, self._config = self._config, config
        if old.cache == config.cache:
            return
        self._save()
        self._close_service()
        if self._embedder is not None and not same_embedder(old.cache.semantic, config.cache.semantic):
            self._embedder.close()
            self._embedder = None
        self._open_at, self._again, self._said = 0.0, AGAIN[0], ""
        if config.cache.enabled:
            self._open()
        self._garbage.everything()

    def _close_service(self) -> None:
        self._leaving.set()
        with self._using:
            service, self._service = self._service, None
        if self._other_hosts is not None:
            self._other_hosts.join(2.0)
            self._other_hosts = None
        if service is not None:
            if service.asks is not None:
                service.asks.close()
            if service.meaning is not None:
                try:
                    service.meaning.close()
                except OSError as e:
                    log.error("the index of questions is not saved: %s", e)
            service.store.close()

    def _queues(self) -> dict[str, int]:
        return {
            "lookups": len(self._lookups),
            "lookups_refused": self._lookups.refused,
            "chores": len(self._chores),
            "chores_refused": self._chores.refused,
        }

    # --- what outlives the process -----------------------------------------------------------------------------------

    def _save(self) -> None:
        service, folder = self._service, self._config.state_dir
        if service is None:
            return
        try:
            written(counts_file(folder), self._counts.dump())
            save_position(service.store, folder)
            if (meaning := service.meaning) is not None:
                with meaning.deciding:
                    learned = meaning.decider.dump()
                written(learned_file(folder), learned)
                meaning.index.save()
        except (OSError, IndexUnavailable) as e:
            log.error("what the cache has learned is not saved: %s", e)

    def _load_counts(self) -> None:
        file = counts_file(self._config.state_dir)
        try:
            self._counts.load(file.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValueError) as e:
            log.warning("%s cannot be read, and the cache counts from 0: %s", file, e)
