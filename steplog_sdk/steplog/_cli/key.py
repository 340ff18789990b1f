"""`steplog key`: a new key for the encryption of bodies."""

from __future__ import annotations

import click

from steplog.stores.cipher import keyring, new_key


@click.command(short_help="Make a key for STEPLOG_KEY.")
def key() -> None:
    """Print a new random key, and its id on stderr.

    With the key in STEPLOG_KEY, bodies are encrypted. To change it, put the new one first and keep the old ones behind
    it, separated by commas: what they have encrypted stays readable.
    """
    made = new_key()
    ring = keyring(made)
    assert ring is not None
    click.echo(made)
    click.echo(f"id {ring.key_id.hex()}", err=True)
