"""The table of voices in a database of the user's choice. SQLAlchemy; blocking, so it is called in threads."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Connection,
    Engine,
    LargeBinary,
    MetaData,
    NullPool,
    Row,
    String,
    Table,
    Text,
    create_engine,
    delete,
    event,
    func,
    insert,
    make_url,
    select,
)
from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError, ProgrammingError, SQLAlchemyError
from sqlalchemy.schema import CreateTable

from app.store.voices import VoiceExistsError, VoiceRecord, VoicesFullError, VoicesUnavailableError

T = TypeVar("T")

_LOCK_S = 10.0
"""How long SQLite waits for another process that writes."""
_METADATA = MetaData()
_VOICES = Table(
    "omni_voices",
    _METADATA,
    Column("key", String(64), primary_key=True),
    Column("name", String(64), nullable=False),
    Column("consent", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("mime_type", String(64), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("text", Text, nullable=False),
    Column("description", Text, nullable=False),
    Column("embedding", JSON, nullable=False),
    Column("sample", LargeBinary((16 << 20) - 1), nullable=False),  # a length, because MySQL's plain BLOB has 64 KiB
)
_WITHOUT_SAMPLE = [column for column in _VOICES.columns if column.name not in ("key", "sample")]


class VoiceTable:
    """All voices of one database. Every method is one transaction, from any thread of any process."""

    def __init__(self, url: str) -> None:
        """
        Raises:
            VoicesUnavailableError: the URL is none, its driver is missing, or the database cannot be reached.
        """
        self._engine = _engine(url)
        self._writer = self._engine.execution_options(**_WRITES)
        _translated(self._create)

    def save(self, record: VoiceRecord, *, limit: int, max_bytes: int, replace: bool) -> None:
        """Keep a voice, in the place of one of its name where `replace` allows that; otherwise nothing changes.

        Raises:
            VoiceExistsError: there is one of its name.
            VoicesFullError: it would be one more than `limit`, or all recordings together more than `max_bytes`.
            VoicesUnavailableError: the database cannot be reached or written.
        """

        def put() -> None:
            with self._writer.begin() as connection:
                _put(connection, record, limit, max_bytes, replace=replace)

        def work() -> None:
            try:
                put()
            except IntegrityError:  # where the database lets two write at a time, the other one was first
                put()

        _translated(work)

    def get(self, name: str) -> VoiceRecord | None:
        """The voice of that name in whatever case, with its recording."""
        query = select(*_WITHOUT_SAMPLE, _VOICES.c.sample).where(_VOICES.c.key == _key(name))
        with_sample = _translated(lambda: self._rows(query))
        return next((_record(row) for row in with_sample), None)

    def all(self) -> list[VoiceRecord]:
        """All voices by name, without their recordings."""
        query = select(*_WITHOUT_SAMPLE).order_by(_VOICES.c.key)
        return [_record(row) for row in _translated(lambda: self._rows(query))]

    def delete(self, name: str) -> bool:
        """Forget a voice; whether there was one."""

        def work() -> bool:
            with self._writer.begin() as connection:
                return connection.execute(delete(_VOICES).where(_VOICES.c.key == _key(name))).rowcount > 0

        return _translated(work)

    def _rows(self, query: Any) -> list[Row[Any]]:
        with self._engine.begin() as connection:
            return list(connection.execute(query))

    def _create(self) -> None:
        create = CreateTable(_VOICES, if_not_exists=True)
        try:
            with self._writer.begin() as connection:
                connection.execute(create)
        except (IntegrityError, ProgrammingError):  # PostgreSQL's word for two processes that both did not find it
            with self._writer.begin() as connection:
                connection.execute(create)


def _put(connection: Connection, record: VoiceRecord, limit: int, max_bytes: int, *, replace: bool) -> None:
    key = _key(record.name)
    replaced = connection.execute(delete(_VOICES).where(_VOICES.c.key == key)).rowcount > 0
    if replaced and not replace:
        raise VoiceExistsError(record.name)  # leaving the transaction undoes the deletion
    count, size = connection.execute(select(func.count(), func.coalesce(func.sum(_VOICES.c.size), 0))).one()
    if count >= limit:
        raise VoicesFullError(f"{limit} voices are kept already (--voices-max)")
    if size + record.size > max_bytes:
        raise VoicesFullError(f"the recordings kept would have more than {max_bytes} bytes (--voices-max-bytes)")
    fields = {column.name: getattr(record, column.name) for column in _VOICES.columns if column.name != "key"}
    connection.execute(insert(_VOICES).values(key=key, **fields))


def _record(row: Row[Any]) -> VoiceRecord:
    return VoiceRecord(**row._asdict())


def _key(name: str) -> str:
    """Names that differ in case only are one."""
    return name.lower()


_WRITES = {"sqlite_begin": "BEGIN IMMEDIATE"}


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() != "sqlite":
            return create_engine(parsed, pool_pre_ping=True)
        if parsed.database in (None, "", ":memory:"):
            raise VoicesUnavailableError("a database in memory is not shared by the API workers; name a file")
        file = Path(parsed.database)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.touch(mode=0o600)  # nobody else's business; SQLite gives its other files the same mode
        engine = create_engine(parsed, poolclass=NullPool, connect_args={"timeout": _LOCK_S})
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        raise VoicesUnavailableError(f"the database URL cannot be used: {error}") from error
    except OSError as error:
        raise VoicesUnavailableError(f"the file of the database cannot be made: {error}") from error
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


def _prepare(connection: sqlite3.Connection, _: object) -> None:
    """Readers and a writer do not wait for each other (WAL); transactions begin where we say so."""
    connection.isolation_level = None
    if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        connection.execute("PRAGMA journal_mode=WAL")


def _begin(connection: Connection) -> None:
    """A writer locks at once: what it has read must still hold when it writes."""
    connection.exec_driver_sql(connection.get_execution_options().get("sqlite_begin", "BEGIN"))


def _translated(work: Callable[[], T]) -> T:
    """Run `work`; what goes wrong with the database itself is one error."""
    try:
        return work()
    except SQLAlchemyError as error:
        cause = getattr(error, "orig", None) or error
        raise VoicesUnavailableError(f"{type(cause).__name__}: {cause}") from error
