"""`steplog key`: a new key for the encryption of bodies, and the change from an old one to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from steplog._cli.lookup import store_at
from steplog._cli.options import common
from steplog._cli.output import console, emit_json, size
from steplog._kernel.words import counted
from steplog.stores.cipher import keyring, new_key

if TYPE_CHECKING:
    from steplog.stores.rotation import Rotated


@click.group(short_help="Make a key for STEPLOG_KEY, or change to it.", invoke_without_command=True)
@click.pass_context
def key(context: click.Context) -> None:
    """Print a new random key, and its id on stderr.

    With the key in STEPLOG_KEY, bodies are encrypted. To change it, put the new one first and keep the old ones behind
    it, separated by commas: what they have encrypted stays readable. `steplog key rotate` then makes the old ones
    superfluous.
    """
    if context.invoked_subcommand is not None:
        return
    made = new_key()
    ring = keyring(made)
    assert ring is not None
    click.echo(made)
    click.echo(f"id {ring.key_id.hex()}", err=True)


@key.command(short_help="Encrypt everything under the newest key.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be done.")
@common
def rotate(home: Path, *, dry_run: bool, as_json: bool) -> None:
    """Encrypt all bodies of the home under the first key in STEPLOG_KEY.

    First give every program STEPLOG_KEY=NEW,OLD and start it again: the old key is needed until this command says that
    it is not. Programs may go on meanwhile. Where it was interrupted, start it again. Exit code 1 where something is
    left under an old key.
    """
    from steplog.stores.bodies import SqliteBodies
    from steplog.stores.rotation import rotate as rotated

    bodies = store_at(home).bodies
    assert isinstance(bodies, SqliteBodies)
    done = rotated(bodies, dry_run=dry_run)
    if as_json:
        emit_json({"dry_run": dry_run, **done._asdict()})
    else:
        _print(done, dry_run=dry_run)
    if done.left and not dry_run:
        raise click.exceptions.Exit(1)


def _print(done: Rotated, *, dry_run: bool) -> None:
    target = console()
    verb = "would be encrypted" if dry_run else "encrypted"
    target.print(f"{counted(done.pieces, 'piece')} ({size(done.size)}) {verb} under key {done.key_id}")
    if done.plain:
        target.print(f"{counted(done.plain, 'piece')} stored before there was a key: left in clear")
    if dry_run:
        return
    if done.damaged:
        target.print(
            f"{counted(done.damaged, 'piece')} damaged, and left as they are under the old key. "
            f"Restore bodies.db from a copy, then rotate again."
        )
    if done.left > done.damaged:
        target.print(
            f"{counted(done.left - done.damaged, 'piece')} under an old key was written meanwhile. Start the programs "
            f"again with STEPLOG_KEY=NEW,OLD, then rotate again: steplog key rotate"
        )
    if not done.left:
        target.print(f"no other key is needed to read this home. Set STEPLOG_KEY to key {done.key_id} alone.")
