"""What a server says of itself."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from hicache_bench.errors import BenchError

# sglang renamed the route; older releases know the first name only, newer ones may drop it.
_ROUTES = ("/get_server_info", "/server_info")
_MODEL_ROUTES = ("/get_model_info", "/model_info")


@dataclass(frozen=True)
class Facts:
    """Launch flags as the server resolved them, and what follows from them.

    Numbers are tokens, but for device_states (state slots), host_ratio (host slots for each device
    slot), host_gb (size of the host pool where it was given so; 0: by ratio), vocab (token ids;
    None where the model's configuration is not on this machine), max_input (longest prompt), chunk
    (most tokens of one prefill step; None: not chunked), step (a state is kept at multiples of it;
    1 where it is kept at the end of a prompt only).
    """

    url: str
    version: str
    model: str
    hierarchical: bool
    cache_report: bool
    radix_cache: bool
    hybrid: bool
    policy: str
    layout: str
    io_backend: str
    strategy: str
    page: int
    step: int
    device_tokens: int
    device_states: int | None
    host_ratio: float
    host_gb: float
    chunk: int | None
    max_input: int
    replicas: int
    vocab: int | None

    @property
    def branches(self) -> bool:
        """Whether a state is kept where prompts part (extra_buffer), not only at their ends."""
        return self.strategy.startswith("extra_buffer")

    @property
    def host_tokens(self) -> int | None:
        """Full KV slots on the host; None where only its bytes are known."""
        return None if self.host_gb else int(self.host_ratio * self.device_tokens)

    @property
    def host_states(self) -> int | None:
        """State slots on the host; None where they are not known."""
        if self.host_gb or self.device_states is None:
            return None
        return int(self.host_ratio * self.device_states)


def fetch(url: str, headers: dict[str, str] | None = None) -> Facts:
    """Ask the server at `url`. Raises BenchError when that is no sglang server."""
    info = _first(url, _ROUTES, headers)
    model = _first(url, _MODEL_ROUTES, headers)
    return read(url, info, model)


def read(url: str, info: dict[str, Any], model: dict[str, Any]) -> Facts:
    """The facts of the two answers. Raises BenchError where a needed field is missing."""
    internal = (info.get("internal_states") or [{}])[0]
    merged = {**internal, **info}
    try:
        page = int(merged["page_size"] or 1)
        device_tokens = int(merged["max_total_num_tokens"])
    except (KeyError, TypeError, ValueError) as error:
        raise BenchError(
            f"{url}/get_server_info: no usable {error}; expected page_size and "
            "max_total_num_tokens, as an sglang server from 0.5.17 on gives them"
        ) from error
    strategy = str(merged.get("mamba_radix_cache_strategy") or "no_buffer")
    chunk = merged.get("chunked_prefill_size")
    step = int(merged.get("_mamba_cache_chunk_size") or 64)
    path = str(model.get("model_path") or merged.get("model_path") or "unknown")
    return Facts(
        url=url,
        version=str(merged.get("version", "unknown")),
        model=path,
        hierarchical=bool(merged.get("enable_hierarchical_cache")),
        cache_report=bool(merged.get("enable_cache_report")),
        radix_cache=not merged.get("disable_radix_cache"),
        hybrid=bool(merged.get("uses_mamba_radix_cache", True)),
        policy=str(merged.get("hicache_write_policy", "unknown")),
        layout=str(merged.get("hicache_mem_layout", "unknown")),
        io_backend=str(merged.get("hicache_io_backend", "unknown")),
        strategy=strategy,
        page=page,
        step=max(page, step) if strategy.startswith("extra_buffer") else 1,
        device_tokens=device_tokens,
        device_states=_number(merged.get("max_mamba_cache_size")),
        host_ratio=float(merged.get("hicache_ratio") or 0),
        host_gb=float(merged.get("hicache_size") or 0),
        chunk=int(chunk) if chunk and int(chunk) > 0 else None,
        max_input=int(merged.get("max_req_input_len") or device_tokens),
        replicas=int(merged.get("dp_size") or 1),
        vocab=_vocab(Path(path)),
    )


def _number(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and value > 0 else None


def _vocab(model: Path) -> int | None:
    """vocab_size of a model folder on this machine."""
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        size = config.get("text_config", config).get("vocab_size")
    except (OSError, ValueError, AttributeError):
        return None
    return size if isinstance(size, int) and size > 0 else None


def _first(url: str, routes: tuple[str, ...], headers: dict[str, str] | None) -> dict[str, Any]:
    """The JSON object of the first route that the server knows."""
    with requests.Session() as session:
        session.trust_env = False  # a proxy is asked for by nobody here
        for route in routes:
            try:
                reply = session.get(url + route, headers=headers, timeout=30)
                if reply.status_code == 404:
                    continue
                value = reply.json() if reply.status_code == 200 else None
            except (requests.RequestException, ValueError) as error:
                raise BenchError(
                    f"{url}{route}: no answer that can be read ({error}); expected an sglang "
                    "server; is it up, and is this its --host and --port?"
                ) from error
            if not isinstance(value, dict):
                raise BenchError(
                    f"{url}{route}: expected status 200 and a JSON object, got "
                    f"{reply.status_code}: {reply.text.strip()[:200]}; if the server was launched "
                    "with --api-key, pass it here too"
                )
            return value
    raise BenchError(
        f"{url}: knows none of {', '.join(routes)}; expected an sglang server from 0.5.17 on"
    )
