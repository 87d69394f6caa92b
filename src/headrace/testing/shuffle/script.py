"""Golden scripts: commands, and what a Session, its Slices and its Queues answered, as text.

A script is a text file. A line that begins with `#` is a comment. Any other line that is not
indented is a command. The indented lines below it are the answers: what was sent, by whom, to
whom. `replay` carries out the commands and returns the text with the answers of the code as it is,
so a script that no longer tells the truth differs from its replay.

The task, its journals and its Sessions:

    bind NAME            the task reads a collection: `a`, `b` or `c`; options: collection,
                         priority, delay (in ticks), key=none
    journal NAME         a journal comes to be; c/key=1/0000 holds the documents of key 1
    delete NAME          a journal is deleted
    open                 a Session opens from the stored checkpoint; options: members, soft and
                         hard (bytes of a Queue), credit (bytes), cycle and report (documents),
                         kept_rows, pending, cut=yes
    restart              as `open`; it replays a checkpoint that was polled and not stored

Publishers:

    write P JOURNAL KEY...    a producer appends documents of its open transaction
    outside P JOURNAL KEY...  the same, but each document is a transaction of its own
    commit P...               ACKs commit the open transaction, in all its journals at once
    rollback P...             ACKs roll it back

What happens between components:

    time TICKS           time passes
    watch                the Session learns how the journals have changed
    deliver              messages arrive until nothing is under way
    deliver PIPE         the messages of one pipe arrive, such as `slice 1 -> session`
    pause PIPE, resume PIPE   `deliver` passes over that pipe, and no longer does
    settle               `watch`, then `deliver`

The consumer:

    poll                 it asks for a checkpoint, and waits if there is none yet; options: max
                         (documents), empty=yes
    give_up              it waits no longer
    read                 it reads the checkpoint that it polled; option: ordered=yes
    store                it stores that checkpoint
    release              it will not read again what it has read

What the answers contain:

    stored               what the consumer has stored
    status               what each component waits for
    show TOPIC..., hide TOPIC...   the messages of more or fewer topics: see `trace.Topic`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import NamedTuple

from headrace.errors import HeadraceError, UsageError
from headrace.frontier import BindingTag
from headrace.ids import JournalId, Offset, Producer
from headrace.journal.sequencer import Flags
from headrace.shuffle.binding import Binding
from headrace.shuffle.checkpoint import Checkpoint
from headrace.shuffle.routing import split_evenly
from headrace.shuffle.slice.state import Limits
from headrace.testing.shuffle.bindings import resolve_in_ticks
from headrace.testing.shuffle.memory_journal import Document, Journal
from headrace.testing.shuffle.memory_journals import MemoryJournals
from headrace.testing.shuffle.memory_run import AMPLE, CALM, Conditions, MemoryRun, Message
from headrace.testing.shuffle.pipes import Pipe
from headrace.testing.shuffle.trace import Topic, Trace, topic_of

_INDENT = "  "
_PATIENCE_TICKS = 10
"""A Slice waits this long for a journal that may have earlier documents and does not answer."""
_OPTION = re.compile(r"[a-z_]+=.*")
_SHOWN = {
    Topic.CHECKPOINTS,
    Topic.READS,
    Topic.BLOCKS,
    Topic.ACKS,
    Topic.FLUSHES,
    Topic.PROGRESS,
    Topic.HOLDS,
}


def replay(text: str) -> str:
    """Return the script with the answers that its commands have now."""
    player = _Player()
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(_INDENT):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            try:
                answers = player.play(_parse(line))
            except Exception as error:
                error.add_note(f"line {number}: {line}")
                raise
            lines += [_INDENT + answer for answer in answers]
    return "\n".join(lines) + "\n"


class _Command(NamedTuple):
    name: str
    words: list[str]
    options: dict[str, str]

    def number(self, name: str, default: int) -> int:
        return int(self.options.get(name, default))

    def some_number(self, name: str) -> int | None:
        return int(self.options[name]) if name in self.options else None


def _parse(line: str) -> _Command:
    name, *words = line.split()
    options = dict(word.split("=", 1) for word in words if _OPTION.fullmatch(word))
    return _Command(name, [word for word in words if not _OPTION.fullmatch(word)], options)


class _Player:
    """Carries out the commands of one script."""

    def __init__(self) -> None:
        self._journals = MemoryJournals()
        self._bindings: list[Binding] = []
        self._producers: dict[str, Producer] = {}
        self._begins: dict[tuple[JournalId, Producer], Offset] = {}
        """The offsets where open spans begin."""
        self._documents: dict[int, Document] = {}
        self._last_commit = Checkpoint()
        self._prepared: Checkpoint | None = None
        """The checkpoint that was polled and is not stored."""
        self._opened: tuple[MemoryRun, Trace] | None = None
        self._paused: set[str] = set()
        self._topics = set(_SHOWN)
        self._answers: list[str] = []

    def play(self, command: _Command) -> list[str]:
        """Return the answers, one a line."""
        if (carry_out := _COMMANDS.get(command.name)) is None:
            raise UsageError(
                f"{command.name!r} is no command of a script", do=f"use {', '.join(_COMMANDS)}"
            )
        self._answers = []
        try:
            carry_out(self, command)
        except HeadraceError as error:
            if self._opened is None or isinstance(error, UsageError):
                raise
            self._answer(f"the Session fails: {type(error).__name__}: {error.what}")
            self._opened = None
        if self._opened is not None and self._run.answer is not None:
            # A poll that waited was answered.
            self._prepared, self._run.answer = self._run.answer, None
        return self._answers

    def _answer(self, line: str) -> None:
        self._answers.append(line)

    # -- the task --------------------------------------------------------------------------

    def bind(self, command: _Command) -> None:
        (name,) = command.words
        self._bindings.append(
            Binding(
                collection=command.options.get("collection", name),
                name=name,
                key=() if command.options.get("key") == "none" else None,
                priority=command.number("priority", 0),
                read_delay_s=float(command.number("delay", 0)),
            )
        )

    def open(self, command: _Command) -> None:
        """From the stored checkpoint; one that was polled and not stored is replayed."""
        members = command.number("members", 1)
        prepared = self._prepared
        known = {**self._last_commit.bindings, **(prepared.bindings if prepared else {})}
        soft_bytes = command.number("soft", AMPLE)
        conditions = Conditions(
            soft_bytes,
            command.number("hard", soft_bytes + AMPLE),
            Limits(
                credit_bytes=command.number("credit", AMPLE),
                cycle_documents=command.number("cycle", Limits().cycle_documents),
                report_documents=command.number("report", Limits().report_documents),
                patience=_PATIENCE_TICKS,
            ),
            kept_rows_max=command.some_number("kept_rows"),
            pending_max=command.number("pending", CALM.pending_max),
        )
        run = MemoryRun(
            self._journals,
            resolve_in_ticks(self._bindings, known),
            split_evenly(members),
            self._last_commit,
            prepared,
            is_cut=command.options.get("cut") == "yes",
            conditions=conditions,
            on_send=self._sent,
        )
        self._opened = run, Trace(run, self._name)
        self._paused = set()
        self.watch(command)

    def _name(self, producer: int) -> str:
        return next(name for name, number in self._producers.items() if number == producer)

    @property
    def _run(self) -> MemoryRun:
        if self._opened is None:
            raise UsageError("the script has no Session here", do="open one before")
        return self._opened[0]

    @property
    def _trace(self) -> Trace:
        assert self._opened is not None
        return self._opened[1]

    def _sent(self, pipe: Pipe, message: Message) -> None:
        if topic_of(message) in self._topics:
            first, *details = self._trace.message(message)
            self._answer(f"{self._trace.pipe(pipe)}: {first}")
            self._answers += [_INDENT + line for line in details]

    def show(self, command: _Command) -> None:
        self._topics |= {Topic(word) for word in command.words}

    def hide(self, command: _Command) -> None:
        self._topics -= {Topic(word) for word in command.words}

    # -- publishers ------------------------------------------------------------------------

    def journal(self, command: _Command) -> None:
        (name,) = command.words
        collection, *rest = name.split("/")
        key = int(rest[0].removeprefix("key=")) if len(rest) > 1 else None
        self._journals.create_journal(collection, key, name)

    def delete(self, command: _Command) -> None:
        self._journals.deleted.add(self._journal(command.words[0]).id)

    def _journal(self, name: str) -> Journal:
        return next(each for each in self._journals.there().values() if each.name == name)

    def _producer(self, name: str) -> Producer:
        return self._producers.setdefault(name, Producer(len(self._producers) + 1))

    def write(self, command: _Command) -> None:
        offset, journal, producer = self._append(command, Flags.CONTINUE)
        self._begins.setdefault((journal, producer), offset)

    def outside(self, command: _Command) -> None:
        self._append(command, Flags.OUTSIDE)

    def _append(self, command: _Command, flags: Flags) -> tuple[Offset, JournalId, Producer]:
        name, journal_name, *words = command.words
        journal, producer, keys = self._journal(journal_name), self._producer(name), words
        first = self._journals.take_clocks(producer, len(keys))
        documents = self._journals.new_documents(journal, producer, list(map(int, keys)), first)
        self._documents |= {document.number: document for document in documents}
        frame = self._journals.append(journal, flags, documents)
        self._journals.pass_time(len(keys))
        clocks = " ".join(str(document.clock) for document in documents)
        self._answer(f"{journal_name} has {name} {clocks} at {frame.offset}")
        return frame.offset, journal.id, producer

    def commit(self, command: _Command) -> None:
        producers = [self._producer(name) for name in command.words]
        self._end({each: self._journals.take_clocks(each, 1) for each in producers})

    def rollback(self, command: _Command) -> None:
        self._end({self._producer(name): 0 for name in command.words})

    def _end(self, clocks: dict[Producer, int]) -> None:
        for frame in self._journals.acknowledge(self._journals.ack_rows(self._begins, clocks)):
            journal, who = self._journals.journals[frame.journal].name, self._name(frame.producer)
            what = f"ACK {frame.clock}" if frame.clock else "ACK of a rollback"
            self._answer(f"{journal} has {who}'s {what} at {frame.offset}")
        self._begins = {key: b for key, b in self._begins.items() if key[1] not in clocks}
        self._journals.pass_time(1)

    # -- what happens ----------------------------------------------------------------------

    def time(self, command: _Command) -> None:
        self._journals.pass_time(int(command.words[0]))
        for member in range(len(self._run.members)):
            self._run.advance(member)

    def watch(self, command: _Command) -> None:
        self._run.watch()

    def settle(self, command: _Command) -> None:
        self._run.watch()
        self._deliver_all()

    def deliver(self, command: _Command) -> None:
        if not command.words:
            self._deliver_all()
            return
        wanted = " ".join(command.words)
        for pipe in self._run.busy_pipes():
            if self._trace.pipe(pipe) == wanted:
                for _ in range(len(self._run.pipes[pipe])):
                    self._run.deliver(pipe)

    def _deliver_all(self) -> None:
        """One message of each pipe in turn, so that the order is always the same."""
        while busy := [p for p in self._run.busy_pipes() if not self._is_paused(p)]:
            for pipe in busy:
                self._run.deliver(pipe)

    def _is_paused(self, pipe: Pipe) -> bool:
        return self._trace.pipe(pipe) in self._paused

    def pause(self, command: _Command) -> None:
        self._paused.add(" ".join(command.words))

    def resume(self, command: _Command) -> None:
        self._paused.remove(" ".join(command.words))

    # -- the consumer ----------------------------------------------------------------------

    def poll(self, command: _Command) -> None:
        may_be_empty = command.options.get("empty") == "yes"
        answer = self._run.poll(command.some_number("max"), may_be_empty=may_be_empty)
        self._prepared = answer or self._prepared

    def give_up(self, command: _Command) -> None:
        self._run.give_up()

    def read(self, command: _Command) -> None:
        if self._prepared is None:
            self._answer("the consumer has no checkpoint")
            return
        if self._run.checkpoints_read < self._run.session.assignment.last_checkpoint:
            self._run.read(self._prepared)
        is_ordered = command.options.get("ordered") == "yes"
        for member, documents in enumerate(self._run.read_again(ordered=is_ordered)):
            self._answer(f"queue {member} shows {'; '.join(self._runs(documents)) or 'nothing'}")

    def _runs(self, documents: list[tuple[BindingTag, int]]) -> Iterator[str]:
        """Yield runs of documents that have one producer, journal and binding."""

        def stream(shown: tuple[BindingTag, int]) -> tuple[BindingTag, JournalId, Producer]:
            document = self._documents[shown[1]]
            return shown[0], document.journal, document.producer

        for (tag, journal, producer), shown in groupby(documents, key=stream):
            clocks = " ".join(str(self._documents[number].clock) for _, number in shown)
            source, name = self._run.sources.by_tag[tag], self._journals.journals[journal].name
            label = f" as {source.name}" if source.name != source.collection else ""
            yield f"{self._name(producer)} {clocks} of {name}{label}"

    def store(self, command: _Command) -> None:
        if self._prepared is not None:
            self._last_commit = Checkpoint.decode(self._last_commit.merge(self._prepared).encode())
            self._prepared = None

    def stored(self, command: _Command) -> None:
        frontier = self._last_commit.frontier
        resumes = frontier.resume_offsets().tolist()
        for line, offset in zip(self._trace.frontier(frontier), resumes, strict=True):
            self._answer(f"{line}; a restart reads from {offset}")

    def release(self, command: _Command) -> None:
        self._run.release()

    def status(self, command: _Command) -> None:
        for producer, journal in self._run.session.waiting_for():
            self._answer(f"session: {self._name(producer)} waits for an ACK in {journal}")
        for number, member in enumerate(self._run.members):
            for place, read in member.slice.reads.items():
                phase = f"{self._trace.place(place)} is {read.phase.value}"
                self._answer(f"slice {number}: {phase}, taken {read.taken} of {read.head}")
        for number, member in enumerate(self._run.members):
            reason = member.queue.reason()
            self._answer(f"queue {number}: {reason or 'below its soft limit'}")


_COMMANDS: dict[str, Callable[[_Player, _Command], None]] = {
    "bind": _Player.bind,
    "journal": _Player.journal,
    "delete": _Player.delete,
    "open": _Player.open,
    "restart": _Player.open,
    "write": _Player.write,
    "outside": _Player.outside,
    "commit": _Player.commit,
    "rollback": _Player.rollback,
    "time": _Player.time,
    "watch": _Player.watch,
    "deliver": _Player.deliver,
    "pause": _Player.pause,
    "resume": _Player.resume,
    "settle": _Player.settle,
    "poll": _Player.poll,
    "give_up": _Player.give_up,
    "read": _Player.read,
    "store": _Player.store,
    "stored": _Player.stored,
    "release": _Player.release,
    "status": _Player.status,
    "show": _Player.show,
    "hide": _Player.hide,
}
