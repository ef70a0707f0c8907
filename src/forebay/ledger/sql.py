"""SQL alike for SQLite and PostgreSQL, for rows by the thousand: plain tuples in the order of the columns."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any

from sqlalchemy import ARRAY, BigInteger, Column, ColumnElement, Connection, Table, any_, exc, func, literal, select


def among(connection: Connection, column: Column[Any], numbers: Collection[int]) -> ColumnElement[bool]:
    """That the column is one of many whole numbers, as one parameter."""
    if connection.dialect.name == "sqlite":
        values = func.json_each(json.dumps(list(numbers))).table_valued("value")
        return column.in_(select(values.c.value))
    return column == any_(literal(list(numbers), ARRAY(BigInteger)))


def insert_rows(connection: Connection, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
    """Rows with a value for each column."""
    if not rows:
        return
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(_insert(connection, table), list(rows))
        return
    try:
        cursor: Any = connection.connection.cursor()
        with cursor, cursor.copy(f"COPY {table.name} FROM STDIN (FORMAT BINARY)") as copy:
            # Numbers as they are: as text a row takes five times as long.
            kinds = (column.type.compile(connection.dialect) for column in table.columns)
            copy.set_types([kind.partition("(")[0].lower() for kind in kinds])
            for row in rows:
                copy.write_row(row)
    except connection.dialect.loaded_dbapi.Error as e:  # SQLAlchemy does not see it
        raise exc.DBAPIError("COPY", None, e) from e


def add_rows(connection: Connection, table: Table, rows: Sequence[tuple[Any, ...]], added: Sequence[str]) -> None:
    """As `insert_rows`; where a row with the primary key exists, the columns `added`, the last ones, are added."""
    if not rows:
        return
    key = ", ".join(column.name for column in table.primary_key)
    # Most are 0 throughout, and each one takes time.
    first = len(table.columns) - len(added)
    some = [
        name for name, values in zip(added, islice(zip(*rows, strict=True), first, None), strict=True) if any(values)
    ]
    sums = ", ".join(f"{name} = {table.name}.{name} + excluded.{name}" for name in some)
    sums = sums or f"{added[0]} = {table.name}.{added[0]}"
    connection.exec_driver_sql(
        f"{_insert(connection, table)} ON CONFLICT ({key}) DO UPDATE SET {sums}",  # names from our own schema
        list(rows),
    )


def put_rows(connection: Connection, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
    """As `insert_rows`; a row with the same primary key is replaced."""
    if not rows:
        return
    key = [column.name for column in table.primary_key]
    rest = ", ".join(f"{column.name} = excluded.{column.name}" for column in table.columns if column.name not in key)
    connection.exec_driver_sql(
        f"{_insert(connection, table)} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {rest}", list(rows)
    )


def mark(connection: Connection) -> str:
    """What stands for a parameter."""
    return "?" if connection.dialect.name == "sqlite" else "%s"


def _insert(connection: Connection, table: Table) -> str:
    names = [column.name for column in table.columns]
    marks = ", ".join([mark(connection)] * len(names))
    return f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({marks})"  # noqa: S608 - names from our own schema
