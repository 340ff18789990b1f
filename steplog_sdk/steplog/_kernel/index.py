"""Where each line of a log lies, and the seal that it was verified with: 24 bytes a line."""

from __future__ import annotations

from array import array
from typing import Final

SEAL_BYTES: Final = 16


class Index:
    """The verified lines of a log by sequence number.

    Attributes:
        ends: for each line, the byte offset behind its newline.
        seals: their seals, one behind the other.
    """

    __slots__ = ("ends", "seals")

    def __init__(self, ends: bytes = b"", seals: bytes = b"") -> None:
        self.ends = array("Q", ends)
        self.seals = bytearray(seals)

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def end(self) -> int:
        """Byte offset behind the last line."""
        return self.ends[-1] if self.ends else 0

    def copy(self) -> Index:
        """An index that grows by itself."""
        return Index(bytes(self.ends), bytes(self.seals))

    def add(self, end: int, seal: bytes) -> None:
        """Note the next line: the offset behind its newline, and its seal as 16 bytes."""
        self.ends.append(end)
        self.seals += seal

    def span(self, seq: int) -> tuple[int, int]:
        """Byte offsets of a line: of its first byte, and of its newline."""
        return self.ends[seq - 1] if seq else 0, self.ends[seq] - 1

    def seal(self, seq: int) -> bytes:
        """The seal of a line, 16 bytes."""
        return bytes(self.seals[seq * SEAL_BYTES : (seq + 1) * SEAL_BYTES])
