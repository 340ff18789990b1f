"""Methods that are not walked, each with its reason. A row that is no longer needed fails the tests."""

from __future__ import annotations

from typing import Final

_WEBSOCKET: Final = "speaks over a websocket: the step says that it is not recorded, and a resumed run halts there"
_LOCAL: Final = "makes no request: it checks or reads what a provider has sent to the program"
_WORK: Final = (
    "takes pieces of work that hold a credential, which is not kept: a resumed run halts there as unreplayable"
)
_LOOP: Final = "a loop over `list`, `stream` and `send` of the same resource, which are walked"

NOT_CALLED: Final = (_WEBSOCKET, _LOCAL, _WORK, _LOOP)
"""Reasons of methods whose own requests are not looked at."""

_CREDENTIAL: Final = "its answer holds a credential, which is not kept: a resumed run halts there as unreplayable"

REFUSED: Final[dict[str, str]] = {
    "openai.beta.realtime.connect": _WEBSOCKET,
    "openai.beta.responses.connect": _WEBSOCKET,
    "openai.live.connect": _WEBSOCKET,
    "openai.live.forks.connect": _WEBSOCKET,
    "openai.live.sideband.connect": _WEBSOCKET,
    "openai.realtime.connect": _WEBSOCKET,
    "openai.realtime.translations.connect": _WEBSOCKET,
    "openai.responses.connect": _WEBSOCKET,
    "openai.webhooks.unwrap": _LOCAL,
    "openai.webhooks.verify_signature": _LOCAL,
    "anthropic.beta.webhooks.parse_unverified": _LOCAL,
    "anthropic.beta.webhooks.unwrap": _LOCAL,
    "openai.admin.organization.admin_api_keys.create": _CREDENTIAL,
    "openai.admin.organization.projects.service_accounts.create": _CREDENTIAL,
    "openai.admin.organization.projects.service_accounts.api_keys.create": _CREDENTIAL,
    "openai.beta.chatkit.sessions.create": _CREDENTIAL,
    "openai.beta.realtime.sessions.create": _CREDENTIAL,
    "openai.beta.realtime.transcription_sessions.create": _CREDENTIAL,
    "openai.realtime.client_secrets.create": _CREDENTIAL,
    "openai.realtime.translations.client_secrets.create": _CREDENTIAL,
    "openai.webhooks.create": _CREDENTIAL,
    "openai.webhooks.rotate_secret": _CREDENTIAL,
    "anthropic.beta.environments.work.ack": _CREDENTIAL,
    "anthropic.beta.environments.work.list": _CREDENTIAL,
    "anthropic.beta.environments.work.poll": _CREDENTIAL,
    "anthropic.beta.environments.work.retrieve": _CREDENTIAL,
    "anthropic.beta.environments.work.stop": _CREDENTIAL,
    "anthropic.beta.environments.work.update": _CREDENTIAL,
    "anthropic.beta.organization.webhooks.create": _CREDENTIAL,
    "anthropic.beta.organization.webhooks.regenerate_signing_secret": _CREDENTIAL,
    "anthropic.beta.tunnels.reveal_token": _CREDENTIAL,
    "anthropic.beta.tunnels.rotate_token": _CREDENTIAL,
    "anthropic.beta.environments.work.poller": _WORK,
    "anthropic.beta.environments.work.worker": _WORK,
    "anthropic.beta.sessions.events.tool_runner": _LOOP,
}
