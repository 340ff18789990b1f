"""An MCP server for the tests: over stdio, or over HTTP with its port written to a file.

python mcp_server.py EFFECTS [PORT_FILE]
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

from mcp.types import ToolAnnotations

try:
    from mcp.server.mcpserver import Context, MCPServer
except ImportError:
    from mcp.server.fastmcp import Context
    from mcp.server.fastmcp import FastMCP as MCPServer

server: Any = MCPServer("shop")


def happened(what: str) -> None:
    with open(sys.argv[1], "a") as file:
        file.write(what + "\n")


@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
def look(order: str) -> dict[str, str]:
    """Look an order up."""
    happened(f"look {order}")
    return {"order": order, "state": "paid"}


@server.tool(annotations=ToolAnnotations(idempotentHint=True))
def cancel(order: str, ctx: Context) -> str:
    """Cancel an order."""
    meta = ctx.request_context.meta
    tree = meta if isinstance(meta, dict) else meta.model_dump() if meta else {}
    happened(f"cancel {order} {tree.get('steplog/idempotency-key')}")
    return f"cancelled {order}"


@server.tool()
async def refund(order: str, ctx: Context) -> str:
    """Give the money back."""
    happened(f"refund {order}")
    if order == "lost":
        os._exit(1)
    if order == "bad":
        raise ValueError("no such order")
    for part in (1, 2):
        await ctx.report_progress(part, 2)
    return f"refunded {order}"


@server.tool()
def own() -> str:
    """Do something for the account that this server was started for."""
    happened("own")
    return Path(sys.argv[1]).name


@server.resource("orders://{order}")
def order(order: str) -> str:
    """An order."""
    happened(f"read {order}")
    return f"order {order}"


@server.prompt()
def greet(name: str) -> str:
    """A greeting."""
    happened(f"greet {name}")
    return f"Say hello to {name}."


def main() -> None:
    if len(sys.argv) < 3:
        server.run("stdio")
        return
    import uvicorn

    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(server.streamable_http_app(), log_level="error")
    Path(sys.argv[2] + ".new").write_text(str(listening.getsockname()[1]))
    os.replace(sys.argv[2] + ".new", sys.argv[2])
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
